// Grouped-query attention in a layer: from the normed rows to queries, keys and values, and to the results of
// attention.
//
// A row of `down` is [queries of this rank's heads | keys | values]. Keys and values are of all key-value heads
// on every rank, because each rank caches whole entries. A head is [columns that are not rotated | columns that
// are], the latter in adjacent pairs: nextn.models.native_gqa puts the rows of the weights in that order.
#pragma once
#include <numeric>

#include "forward.h"

namespace {

// The layout of a layer's entry, and which part each of this rank's heads reads. A group never covers two
// key-value heads, even if a rank has only some of a key-value head's query heads.
inline NxHeads grouped_heads(const NxModel& m) {
    const int share = m.all_heads / m.kv_heads, heads = std::gcd(share, m.heads);
    const int value = int(wide(m.value)), key = int(wide(m.nope + m.rope));
    return {m.heads / heads, heads, m.first_head / heads, share / heads, value + key, value, value, key, m.value};
}

// y <- x [nope + rope] f32, a head: normed if `norm` is not null, rotated, times `scale`, padded with zeros.
inline void put_head(const NxModel& m, const float* x, const float* norm, const float* cosine, const float* sine,
                     float scale, uint16_t* y) {
    alignas(64) float head[MOST_RANK];
    const int n = m.nope + m.rope;
    copy_padded(x, n, head);
    if (norm) norm_f32(head, norm, n, m.eps, head);
    const vf by = splat(scale);
    for (int j = 0; j < m.nope; j += 16) store_bf16(y + j, mul(load(head + j), by));
    rotate(head + m.nope, cosine, sine, m.rope, scale, y + m.nope);
    for (int64_t j = n; j < wide(n); ++j) y[j] = 0;
}

// y <- x [n] f32, padded with zeros.
inline void put_value(const float* x, int n, uint16_t* y) {
    for (int j = 0; j < n; ++j) y[j] = float_bf16(x[j]);
    for (int64_t j = n; j < wide(n); ++j) y[j] = 0;
}

inline void Engine::mix_groups(const NxLayer& l, const Cache& cache, int rows, uint16_t* mixed) {
    const NxModel& m = model;
    const NxHeads of = grouped_heads(m);
    const int n = m.nope + m.rope, queries = m.heads * n, keys = m.kv_heads * n, all_values = m.kv_heads * m.value;
    const int total = queries + keys + all_values;
    const int64_t down = wide(total);
    float* as = room(a, rows * down);
    const auto product = [&](const NxWeight& w, int at, int count) {
        product_all(pool, {reinterpret_cast<uint32_t*>(h16.data()), wide(m.hidden) / 2}, rows, w,
                    [&](int i, int n0, int some, const float* v) {
                        put(as + i * down + at + n0, v, some < count - n0 ? some : count - n0);
                    });
    };
    product(l.down, 0, l.key_up.data ? queries : total);
    if (l.key_up.data) {
        product(l.key_up, queries, keys);
        product(l.value_up, queries + keys, all_values);
    }
    uint16_t* qy = room(query, int64_t(rows) * m.heads * of.key);
    each_row(pool, rows, [&](int i) {
        float* row = as + i * down;
        if (l.bias) add_to(row, l.bias, total);
        const int64_t at = int64_t(position[i]) * (m.rope / 2);
        const auto turn = [&](const float* head, const float* norm, float scale, uint16_t* to) {
            put_head(m, head, norm, m.cosine + at, m.sine + at, scale, to);
        };
        for (int head = 0; head < m.heads; ++head, row += n) {
            const int64_t group = head / of.heads;
            turn(row, l.q_norm, m.scale, qy + ((group * rows + i) * of.heads + head % of.heads) * of.key);
        }
        uint16_t* entry = slot(cache, i);
        for (int head = 0; head < m.kv_heads; ++head, row += n)
            turn(row, l.kv_norm, 1.f, entry + int64_t(head) * of.stride + of.key_at);
        for (int head = 0; head < m.kv_heads; ++head, row += m.value)
            put_value(row, m.value, entry + int64_t(head) * of.stride);
    });
    attention(pool, spans.data(), int(spans.size()), rows, cache, of, qy, scratch, parts, {mixed, flat()});
}

}  // namespace
