// Absorbed latent attention in a layer (MLA, arXiv 2405.04434). The cache holds the latent. Queries are
// multiplied by their own half of kv_b_proj, and the results of attention by the other half.
#pragma once
#include "forward.h"

namespace {

inline void Engine::mix_latents(const NxLayer& l, const Cache& cache, int rows, uint16_t* vs) {
    const NxModel& m = model;
    const int64_t c = wide(m.hidden), latent = m.rank + m.rope, flat = this->flat();
    const int64_t down = l.down.n_out;
    const Rows normed{reinterpret_cast<uint32_t*>(h16.data()), c / 2};
    float* as = room(a, rows * wide(down));
    if (l.q_norm) as = project(normed, rows, l.down, wide(down), as, projected[0]);
    else  // each rank computes its heads' queries, and the whole latent
        product_all(pool, normed, rows, l.down,
                    [&](int i, int n0, int n, const float* v) { put(as + i * wide(down) + n0, v, n); });

    // The queries' latent through its norm, if they have one, and this row's entry in the cache.
    const int64_t q_latent_wide = wide(m.q_in);
    uint16_t* ql = l.q_norm ? room(q_latent, rows * q_latent_wide) : nullptr;
    each_row(pool, rows, [&](int i) {
        float* row = as + i * wide(down);
        if (ql) {
            alignas(64) float copy[MOST_LATENT];
            copy_padded(row, m.q_in, copy);
            norm_bf16(copy, l.q_norm, m.q_in, m.latent_eps, ql + i * q_latent_wide);
        }
        alignas(64) float key[MOST_RANK];
        copy_padded(row + m.q_in, m.rank, key);
        uint16_t* entry = slot(cache, i);
        alignas(64) uint16_t normed[MOST_RANK];
        norm_bf16(key, l.kv_norm, m.rank, m.latent_eps, normed);
        memcpy(entry, normed, size_t(m.rank) * 2);
        const int64_t at = int64_t(position[i]) * (m.rope / 2);
        rotate(row + m.q_in + m.rank, m.cosine + at, m.sine + at, m.rope, 1.f, entry + m.rank);
        for (int64_t j = latent; j < m.width; ++j) entry[j] = 0;
    });
    const float* qs = as;
    int64_t q_stride = wide(down);
    if (ql) {
        q_stride = wide(l.q_up.n_out);
        float* to = room(q, rows * q_stride);
        product_all(pool, {reinterpret_cast<uint32_t*>(ql), q_latent_wide / 2}, rows, l.q_up,
                    [&](int i, int n0, int n, const float* v) { put(to + i * q_stride + n0, v, n); });
        qs = to;
    }

    // Absorption: each head's query times its own half of kv_b_proj, which takes it to the latent's columns.
    const int64_t nope = wide(m.nope), vectors = int64_t(rows) * m.heads;
    uint16_t* qn = room(q_nope, vectors * nope);
    uint16_t* qy = room(query, vectors * m.width);
    each_row(pool, rows, [&](int i) {
        const int64_t at = int64_t(position[i]) * (m.rope / 2);
        for (int head = 0; head < m.heads; ++head) {
            const float* from = qs + i * q_stride + int64_t(head) * (m.nope + m.rope);
            uint16_t* to = qn + (int64_t(head) * rows + i) * nope;
            for (int j = 0; j < m.nope; ++j) to[j] = float_bf16(from[j]);
            if (m.nope & 1) to[m.nope] = 0;
            uint16_t* whole = qy + (int64_t(i) * m.heads + head) * m.width;
            rotate(from + m.nope, m.cosine + at, m.sine + at, m.rope, m.scale, whole + m.rank);
            for (int64_t j = latent; j < m.width; ++j) whole[j] = 0;
        }
    });
    const vf scale = splat(m.scale);
    const int key_panels = panels(l.key_up);
    by_head.take(pool, {reinterpret_cast<uint32_t*>(qn), nope / 2}, head_begin.data(), m.heads, l.key_up);
    pool.for_each(m.heads * key_panels, [&](int t, int) {
        const int head = t / key_panels, p = t % key_panels;
        rows_by_panel(by_head, head * rows, (head + 1) * rows, l.key_up, panel_of(l.key_up, p, head),
                      [&](int i, int n0, int n, const float* v) {
                          uint16_t* to = qy + int64_t(head_rows[i]) * m.width + n0;
                          alignas(64) uint16_t half[PANEL];
                          for (int j = 0; j < n; j += 16) store_bf16(half + j, mul(load(v + j), scale));
                          memcpy(to, half, size_t(n < m.rank - n0 ? n : m.rank - n0) * 2);
                      });
    }, m.heads * product_cost(l.key_up, rows));

    const int rank = int(wide(m.rank));
    uint16_t* mx = room(mixed, vectors * rank);
    const NxHeads of{1, m.heads, 0, 1, m.width, rank, 0, m.width, rank};
    attention(pool, spans.data(), int(spans.size()), rows, cache, of, qy, scratch, parts,
              {mx, int64_t(m.heads) * rank});

    const int value_panels = panels(l.value_up);
    by_head.take(pool, {reinterpret_cast<uint32_t*>(mx), rank / 2, head_rows.data()}, head_begin.data(), m.heads,
                 l.value_up);
    pool.for_each(m.heads * value_panels, [&](int t, int) {
        const int head = t / value_panels, p = t % value_panels;
        rows_by_panel(by_head, head * rows, (head + 1) * rows, l.value_up, panel_of(l.value_up, p, head),
                      [&](int i, int n0, int n, const float* v) {
                          alignas(64) uint16_t half[PANEL];
                          put_bf16(half, v, n);
                          memcpy(vs + (i - head * rows) * flat + int64_t(head) * m.value + n0, half,
                                 size_t(n < m.value - n0 ? n : m.value - n0) * 2);
                      });
    }, m.heads * product_cost(l.value_up, rows));
}

}  // namespace
