// A model and a batch as the kernels get them, and the spans of a batch.
#pragma once
#include "attention.h"
#include "shared_experts.h"

extern "C" {
// Of grouped queries, `down` is queries over keys over values, or queries alone where key_up is of all keys and value_up
// of all values; q_norm and kv_norm are those of a head of the queries and of the keys, or null.
struct NxLayer {
    const float* attention_norm;  // norms: f32, zero up to the next multiple of 32
    NxWeight down;                // queries' latent (or queries) over keys' and values' latent and rotary key
    const float* q_norm;          // null: queries are not compressed
    NxWeight q_up;
    const float* kv_norm;
    NxWeight key_up, value_up;    // one for each head
    const float* bias;            // of queries, keys and values; biases, like norms, end in zeros; null: none
    NxWeight out;
    const float* out_bias;        // of all its outputs, also where a rank has some; null: none
    const float* mlp_norm;
    NxFeedForward mlp;
};

struct NxNextN {                  // a NextN module but for its decoder layer
    const float *enorm, *hnorm, *norm;
    NxWeight eh_proj;
};

struct NxModel {
    int32_t hidden, heads, nope, rope, rank, value, q_in;  // heads: this rank's own
    int32_t kv_heads;             // of grouped queries, all of them; 0: latent attention
    int32_t first_head, all_heads, vocab;
    int32_t layers;               // of the target; layer number `layers` + k is NextN module k's
    float eps, latent_eps, scale; // scale: of attention's scores
    const uint16_t* embedding;    // [vocab, hidden] bf16
    const float *cosine, *sine;   // [positions, rope / 2]
    const NxLayer* layer;
    const float* norm;
    NxWeight head;
    const NxNextN* nextn;         // one for each layer behind the target's
    int32_t masks_first;          // 1: of a module's row at position 0 the embedding is zero
    NxWeight draft_head;          // the drafter's: the head, or a coarser copy of it, or of some of its rows
    const int32_t* draft_ids;     // null: all rows; else the token of each of its rows
    int32_t draft_vocab;          // rows of draft_head
    uint16_t* cache;              // [layers and NextN modules, slots, width] bf16: attention.h has its entries
    int64_t layer_elements;       // of the cache
    int32_t width, page;
    NxRanks* ranks;               // null: one
    NxWorld* world;               // null: experts are not shared
};

// The layout of nextn/layers/batch.py, which has a worked example. Rows of span s: cu_rows[s] .. cu_rows[s + 1].
struct NxBatch {
    int32_t rows, spans;
    const int32_t* tokens;
    const int32_t *starts, *page_at;  // [spans]; page_at: place in table
    const int32_t* cu_rows;           // [spans + 1]
    const int32_t* cu_paths;          // [rows + 1], places in table; null: no span is a tree
    const int32_t* table;             // pages of the spans, slots of the paths
};
}

namespace {

// Every span, or, of a tree, each node for itself; they go together where there is a whole block that all see.
inline void spans_of(const NxBatch& b, std::vector<Span>& to) {
    to.clear();
    for (int i = 0; i < b.spans; ++i) {
        const int32_t first = b.cu_rows[i], end = b.cu_rows[i + 1], start = b.starts[i];
        const int32_t* pages = b.table + b.page_at[i];
        if (first == end || !b.cu_paths || b.cu_paths[first] == b.cu_paths[first + 1]) {
            to.push_back({first, end - first, start, pages, INT32_MAX, nullptr, 1});
            continue;
        }
        for (int32_t row = first; row < end; ++row) {
            const int32_t path = b.cu_paths[row], length = b.cu_paths[row + 1] - path;
            to.push_back({row, 1, start + length - 1, pages, start, b.table + path, start < KEYS ? 1 : end - row});
        }
    }
}

}  // namespace
