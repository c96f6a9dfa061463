// The paged cache, and what the attention files share: spans, blocks of keys, and sums that grow block by
// block.
#pragma once
#include <cstring>
#include <vector>

#include "simd.h"

extern "C" {
// Which part of an entry is the key, and which the value, for each query head. Query heads that share a key and
// a value are a group. The same layout as nextn.ops.cpu.interface.Heads.
struct NxHeads {
    int32_t groups, heads;  // number of groups; heads in each group
    int32_t first, repeat;  // group g reads key-value head (first + g) / repeat
    int32_t stride;         // elements of an entry from one key-value head to the next
    int32_t value;          // columns of the value, which is at the beginning; padded to a multiple of 32
    int32_t key_at, key;    // first column of the key; its columns, padded with zeros to a multiple of 32
    int32_t columns;        // columns of the value that are written to the result
};
}

namespace {

constexpr int KEYS = 256;        // positions in a block; equals nextn.ops.base.KV_BLOCK
constexpr int MOST_RANK = 1024;  // maximum of columns of a latent or of a head's value or key, for buffers on the stack

struct Span {           // rows [first, first + rows) of one request, at positions start, start + 1, ...
    int32_t first, rows, start;
    const int32_t* pages;
    int32_t fork;         // from this position on, path has the slots, one per position; INT32_MAX: all are in pages
    const int32_t* path;
    int32_t nodes;        // spans of one tree, from this one on, that read its prefix together; else 1

    int32_t all_rows() const { return nodes > 1 ? nodes : rows; }
};

struct Cache {
    uint16_t* data;  // [slots, width] bf16
    int32_t width, page;

    // The cache as group g of query heads sees it.
    Cache of(const NxHeads& heads, int g) const {
        return {data + int64_t((heads.first + g) / heads.repeat) * heads.stride, width, page};
    }
    uint16_t* entry(const Span& s, int position) const {
        if (position >= s.fork) return data + int64_t(s.path[position - s.fork]) * width;
        return data + (int64_t(s.pages[position / page]) * page + position % page) * width;
    }
};

// Number of the span's keys from position `begin` on that a query (row * heads + head) sees, at most KEYS.
inline int keys_seen(const Span& s, int query, int heads, int begin) {
    const int seen = s.start + query / heads + 1 - begin;
    return seen < 0 ? 0 : seen < KEYS ? seen : KEYS;
}

// The last position that any of the queries [from, from + n) sees, counted from the span on.
inline int last_seen(const Span* s, int from, int n, int heads) {
    const int row = (from + n - 1) / heads;
    if (s->nodes == 1) return s->start + row;
    int last = 0;
    for (int i = from / heads; i <= row; ++i) last = s[i].start > last ? s[i].start : last;
    return last;
}

struct Softmax {  // of one query, over one block or over all blocks so far
    float top, total;
};

struct alignas(64) Line {  // a cache line; data that tiles and vectors read should not straddle two
    float values[16];
};

inline float* room(std::vector<Line>& v, int64_t floats) {
    const size_t lines = size_t(floats + 15) / 16;
    if (v.size() < lines) v.resize(lines);
    return v.data()->values;
}

// Combines one more block (part, found) with those before it (sums, state).
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

// out <- the first n columns of sums, divided by the total. sums: columns in the order that store_columns
// restores, 32 by 32.
inline void finish(const float* sums, const Softmax& state, int n, uint16_t* out) {
    const vf total = splat(state.total == 0.f ? NAN : state.total);  // 0: no score was a number, and sums is not set
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
