// The paged cache, and what attention's files share: spans, blocks of keys, sums that grow block by block.
#pragma once
#include <cstring>
#include <vector>

#include "simd.h"

extern "C" {
// Which part of an entry is the key, and which the value, of which query heads. Query heads that share a key and a
// value are a group. The same layout as nextn.ops.cpu.library.Heads.
struct NxHeads {
    int32_t groups, heads;  // heads: of each group
    int32_t first, repeat;  // group g meets key-value head (first + g) / repeat
    int32_t stride;         // elements of an entry from one key-value head to the next
    int32_t value;          // its first columns are the value, filled up to a multiple of 32
    int32_t key_at, key;    // where its key begins; columns, filled up with zeros to a multiple of 32
    int32_t columns;        // of the value, that come out
};
}

namespace {

constexpr int KEYS = 256;        // positions of a block; nextn.ops.base.KV_BLOCK
constexpr int MOST_RANK = 1024;  // columns of a latent or of a head's value or key, in buffers on the stack

struct Span {           // of one request: rows [first, first + rows) at positions start, start + 1, ...
    int32_t first, rows, start;
    const int32_t* pages;
    int32_t fork;         // from this position on slots are path's, one for each; INT32_MAX: all are the pages'
    const int32_t* path;
    int32_t nodes;        // spans from this one on that are one tree's and read its prefix together; else 1

    int32_t all_rows() const { return nodes > 1 ? nodes : rows; }
};

struct Cache {
    uint16_t* data;  // [slots, width] bf16
    int32_t width, page;

    // As group g of query heads sees it.
    Cache of(const NxHeads& heads, int g) const {
        return {data + int64_t((heads.first + g) / heads.repeat) * heads.stride, width, page};
    }
    uint16_t* entry(const Span& s, int position) const {
        if (position >= s.fork) return data + int64_t(s.path[position - s.fork]) * width;
        return data + (int64_t(s.pages[position / page]) * page + position % page) * width;
    }
};

// Of the span's keys from `begin` on, how many its query (row * heads + head) sees; not above a block's.
inline int keys_seen(const Span& s, int query, int heads, int begin) {
    const int seen = s.start + query / heads + 1 - begin;
    return seen < 0 ? 0 : seen < KEYS ? seen : KEYS;
}

// The last position that one of queries [from, from + n) sees, counted from the span on.
inline int last_seen(const Span* s, int from, int n, int heads) {
    const int row = (from + n - 1) / heads;
    if (s->nodes == 1) return s->start + row;
    int last = 0;
    for (int i = from / heads; i <= row; ++i) last = s[i].start > last ? s[i].start : last;
    return last;
}

struct Softmax {  // of one query over one block, or over all up to one
    float top, total;
};

struct alignas(64) Line {  // of a cache; what tiles and vectors are read from should not straddle two
    float values[16];
};

inline float* room(std::vector<Line>& v, int64_t floats) {
    const size_t lines = size_t(floats + 15) / 16;
    if (v.size() < lines) v.resize(lines);
    return v.data()->values;
}

// sums, state <- those of the blocks so far and one more.
inline void combine(float* sums, Softmax& state, const float* part, const Softmax& found, int rank) {
    if (found.total == 0.f) return;
    if (state.total == 0.f) {
        state = found;
        memcpy(sums, part, size_t(rank) * 4);
        return;
    }
    alignas(64) float gap[16] = {};
    const float top = state.top > found.top ? state.top : found.top;
    gap[0] = state.top - top;
    gap[1] = found.top - top;
    alignas(64) float scale[16];
    store(scale, exp(load(gap)));
    const float old_scale = state.top == top ? 1.f : scale[0], new_scale = found.top == top ? 1.f : scale[1];
    const vf a = splat(old_scale), b = splat(new_scale);
    for (int c = 0; c < rank; c += 16) store(sums + c, fma(load(part + c), b, mul(load(sums + c), a)));
    state.total = state.total * old_scale + found.total * new_scale;
    state.top = top;
}

// sums: columns in the order that store_columns undoes, 32 by 32, of which the first n are wanted.
inline void finish(const float* sums, const Softmax& state, int n, uint16_t* out) {
    const vf total = splat(state.total == 0.f ? NAN : state.total);  // 0: no score was a number, and sums are not set
    for (int c = 0; c < n; c += 32) {
        alignas(64) float columns[32];
        alignas(64) uint16_t rest[32];
        uint16_t* to = n - c < 32 ? rest : out + c;
        store_columns(columns, div(load(sums + c), total), div(load(sums + c + 16), total));
        store_bf16(to, load(columns));
        store_bf16(to + 16, load(columns + 16));
        if (n - c < 32) memcpy(out + c, rest, size_t(n - c) * 2);
    }
}

}  // namespace
