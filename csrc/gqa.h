// Grouped-query attention in a layer: queries, keys and values of their own heads, up to the mixed values.
//
// A row of `down` is [queries of this rank's heads | keys | values], the latter of all key-value heads on every rank, as
// each rank caches all of an entry. A head is [columns that stay | columns that turn], the turning ones in adjacent
// pairs: nextn.models.native_gqa puts the rows of the weights in that order.
#pragma once
#include <numeric>

#include "attention.h"
#include "model.h"
#include "norm.h"

namespace {

// The entry of a layer, and which of this rank's heads see which part of it. A group never straddles two key-value
// heads, even where a rank has some of the heads of one.
inline NxHeads grouped_heads(const NxModel& m) {
    const int share = m.all_heads / m.kv_heads, heads = std::gcd(share, m.heads);
    const int value = int(wide(m.value)), key = int(wide(m.nope + m.rope));
    return {m.heads / heads, heads, m.first_head / heads, share / heads, value + key, value, value, key, m.value};
}

// x [nope + rope] f32 of a head, through its norm if there is one, turned, times `scale`; y filled up with zeros.
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

// x [n] f32; y filled up with zeros.
inline void put_value(const float* x, int n, uint16_t* y) {
    for (int j = 0; j < n; ++j) y[j] = float_bf16(x[j]);
    for (int64_t j = n; j < wide(n); ++j) y[j] = 0;
}

}  // namespace
