// The model and the batch in the form in which the kernels get them, and the spans of a batch.
#pragma once
#include "attention.h"
#include "shared_experts.h"

extern "C" {
// With grouped-query attention, `down` is queries over keys over values, or queries alone if key_up is the
// keys' and value_up the values' projection. q_norm and kv_norm are then norms of one head, or null.
struct NxLayer {
    const float* attention_norm;  // norms: f32, padded with zeros to a multiple of 32
    NxWeight down;                // queries' latent (or queries) over keys' and values' latent and rotary key
    const float* q_norm;          // null: queries are not compressed
    NxWeight q_up;
    const float* kv_norm;
    NxWeight key_up, value_up;    // one for each head
    const float* bias;            // of queries, keys and values; biases are padded like norms; null: no bias
    NxWeight out;
    const float* out_bias;        // of all outputs, even if a rank computes only some; null: no bias
    const float* mlp_norm;
    NxFeedForward mlp;
};

struct NxNextN {                  // a NextN module without its decoder layer
    const float *enorm, *hnorm, *norm;
    NxWeight eh_proj;
};

struct NxModel {
    int32_t hidden, heads, nope, rope, rank, value, q_in;  // heads: this rank's
    int32_t kv_heads;             // key-value heads of all ranks, with GQA; 0: latent attention
    int32_t first_head, all_heads, vocab;
    int32_t layers;               // the target's; layer `layers` + k is that of NextN module k
    float eps, latent_eps, scale; // scale: factor of attention's scores
    const uint16_t* embedding;    // [vocab, hidden] bf16
    const float *cosine, *sine;   // [positions, rope / 2]
    const NxLayer* layer;
    const float* norm;
    NxWeight head;
    const NxNextN* nextn;         // one for each layer after the target's
    int32_t masks_first;          // 1: in a module, the embedding of the row at position 0 is zero
    NxWeight draft_head;          // the drafter's head: the target's, a coarser copy, or some of its rows
    const int32_t* draft_ids;     // the token of each row of draft_head; null: rows are tokens in order
    int32_t draft_vocab;          // rows of draft_head
    uint16_t* cache;              // [layers and NextN modules, slots, width] bf16; attention.h describes entries
    int64_t layer_elements;       // elements of the cache in each layer
    int32_t width, page;
    NxRanks* ranks;               // null: there is one rank
    NxWorld* world;               // null: experts are not shared
};

// The layout of nextn/layers/batch.py, which has a worked example. The rows of span s are cu_rows[s] ..
// cu_rows[s + 1].
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

// to <- the spans of a batch. Each node of a tree is a span of its own; `nodes` joins them if there is a whole
// block of keys that all of them see.
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
