// Matrix products with packed weights: y[t, n] = sum over k of x[t, k] * w[n, k].
//
// A weight [N, K] is cut into panels of 64 outputs (the last one narrower, a multiple of 16). In a panel the
// outputs of one k (or of one pair of k: bf16, e4m3, int8) lie side by side, so a panel is read front to back,
// once for every six rows. Each output is one chain of additions over k from first to last, whatever the
// number of rows and threads: that is all that row invariance needs.
//
// e4m3 and int8 carry a scale per output and block of k. A block's sum is scaled when it is complete.
#pragma once
#include <type_traits>

#include "pool.h"
#include "simd.h"

namespace {

constexpr int PANEL = 64;   // outputs of a whole panel
constexpr int ROWS = 6;     // rows of a register tile: 6 x 4 accumulators, 4 weights and a spare of 32 registers
constexpr int TILE = ROWS * PANEL;

enum Kind : int32_t { F32 = 0, BF16 = 1, E4M3 = 2, INT8 = 3 };

}  // namespace

extern "C" {
// The same layout as nextn.ops.cpu.library.Weight.
struct NxWeight {
    const uint8_t* data;   // panels
    const float* scales;   // [panels][blocks of k][panel's outputs], null for f32 and bf16
    int32_t n_out, n_in;   // n_out as packed (a multiple of 16), n_in even unless f32
    int32_t kind;
    int32_t block;         // k of one scale, even
    int64_t stride;        // bytes from one weight to the next, where several lie in a row (heads, experts)
    int64_t scale_stride;  // floats, likewise
};
}

namespace {

inline int64_t element_bytes(int kind) { return kind == F32 ? 4 : kind == BF16 ? 2 : 1; }

struct Panel {
    const uint8_t* data;
    const float* scales;
    int vectors;  // of 16 outputs: 1..4
    int first;    // first output
};

// Of `rows` against one such weight, for Pool::for_each: it is read once, and worked on for every six rows.
inline int64_t product_cost(const NxWeight& w, int64_t rows) {
    return int64_t(w.n_out) * w.n_in * element_bytes(w.kind) * ((rows + ROWS - 1) / ROWS);
}

inline int panels(const NxWeight& w) { return (w.n_out + PANEL - 1) / PANEL; }

inline Panel panel_of(const NxWeight& w, int p, int member = 0) {
    const int first = p * PANEL, width = w.n_out - first < PANEL ? w.n_out - first : PANEL;
    const int64_t blocks = w.scales ? (w.n_in + w.block - 1) / w.block : 0;
    return {w.data + member * w.stride + int64_t(first) * w.n_in * element_bytes(w.kind),
            w.scales ? w.scales + member * w.scale_stride + first * blocks : nullptr, width / 16, first};
}

struct LoadF32 {
    static constexpr int bytes = 64;
    static vf step(vf acc, uint32_t x, const uint8_t* w) { return fma(as_float(splat_word(x)), as_float(words(w)), acc); }
};
struct LoadBf16 { static constexpr int bytes = 64; static vi get(const uint8_t* w) { return words(w); } };
struct LoadE4m3 { static constexpr int bytes = 32; static vi get(const uint8_t* w) { return widen_e4m3(w); } };
struct LoadInt8 { static constexpr int bytes = 32; static vi get(const uint8_t* w) { return widen_int8(w); } };

// x: M rows of `steps` words (pairs of bf16, or f32). acc[M][V] += the products.
template <class Load, int M, int V>
inline void chain(const uint32_t* const* x, const uint8_t* w, int from, int to, vf (&acc)[M][V]) {
    constexpr int ahead = 24 * 64;  // bytes; the hardware prefetcher stops at page ends
    for (int k = from; k < to; ++k, w += V * Load::bytes) {
#if defined(__x86_64__)
        for (int b = 0; b < V * Load::bytes; b += 64) __builtin_prefetch(w + ahead + b);
#endif
        if constexpr (std::is_same_v<Load, LoadF32>) {
            NX_UNROLL for (int m = 0; m < M; ++m)
                NX_UNROLL for (int v = 0; v < V; ++v) acc[m][v] = LoadF32::step(acc[m][v], x[m][k], w + v * 64);
        } else {
            vi wv[V];
            NX_UNROLL for (int v = 0; v < V; ++v) wv[v] = Load::get(w + v * Load::bytes);
            NX_UNROLL for (int m = 0; m < M; ++m) {
                const vi xm = splat_word(x[m][k]);
                NX_UNROLL for (int v = 0; v < V; ++v) acc[m][v] = dot2(acc[m][v], xm, wv[v]);
            }
        }
    }
}

// tile [M][64] <- M rows times one panel. steps: words of a row.
template <class Load, int M, int V>
void product(const uint32_t* const* x, const uint8_t* w, const float* scales, int steps, int block, float* tile) {
    if constexpr (Load::bytes == 64) {
        vf acc[M][V];
        NX_UNROLL for (int m = 0; m < M; ++m) NX_UNROLL for (int v = 0; v < V; ++v) acc[m][v] = zero();
        chain<Load, M, V>(x, w, 0, steps, acc);
        NX_UNROLL for (int m = 0; m < M; ++m)
            NX_UNROLL for (int v = 0; v < V; ++v) store(tile + m * PANEL + v * 16, acc[m][v]);
    } else {
        for (int m = 0; m < M; ++m) for (int v = 0; v < V; ++v) store(tile + m * PANEL + v * 16, zero());
        for (int from = 0; from < steps; from += block, scales += V * 16) {
            const int to = from + block < steps ? from + block : steps;
            vf acc[M][V];
            NX_UNROLL for (int m = 0; m < M; ++m) NX_UNROLL for (int v = 0; v < V; ++v) acc[m][v] = zero();
            chain<Load, M, V>(x, w + int64_t(from) * V * Load::bytes, from, to, acc);
            NX_UNROLL for (int m = 0; m < M; ++m)
                NX_UNROLL for (int v = 0; v < V; ++v) {
                    float* at = tile + m * PANEL + v * 16;
                    store(at, fma(acc[m][v], load(scales + v * 16), load(at)));
                }
        }
    }
}

using Product = void (*)(const uint32_t* const*, const uint8_t*, const float*, int, int, float*);

#define NX_V(L, M) {product<L, M, 1>, product<L, M, 2>, product<L, M, 3>, product<L, M, 4>}
#define NX_M(L) {NX_V(L, 1), NX_V(L, 2), NX_V(L, 3), NX_V(L, 4), NX_V(L, 5), NX_V(L, 6)}
const Product PRODUCTS[4][ROWS][4] = {NX_M(LoadF32), NX_M(LoadBf16), NX_M(LoadE4m3), NX_M(LoadInt8)};
#undef NX_M
#undef NX_V

// The rows of a matrix, possibly scattered: row(i) is word i of the words [*, stride].
struct Rows {
    const uint32_t* base;
    int64_t stride;  // words
    const int32_t* index = nullptr;
    const uint32_t* operator()(int i) const { return base + stride * (index ? index[i] : i); }
};

// Rows [from, to) of x against one panel; done(i, first output, number of outputs, 64 floats) for each row.
template <class Done>
inline void rows_by_panel(const Rows& x, int from, int to, const NxWeight& w, const Panel& panel, const Done& done) {
    alignas(64) float tile[TILE];
    const int steps = w.kind == F32 ? w.n_in : w.n_in / 2;
    const int block = w.kind == F32 ? w.block : w.block / 2;
    for (int i = from; i < to;) {
        const int m = to - i < ROWS ? to - i : ROWS;
        const uint32_t* rows[ROWS];
        for (int j = 0; j < m; ++j) rows[j] = x(i + j);
        PRODUCTS[w.kind][m - 1][panel.vectors - 1](rows, panel.data, panel.scales, steps, block, tile);
        for (int j = 0; j < m; ++j) done(i + j, panel.first, panel.vectors * 16, tile + j * PANEL);
        i += m;
    }
}

// All rows against all panels, in pieces of panel x row block for the pool.
template <class Done>
inline void product_all(Pool& pool, const Rows& x, int rows, const NxWeight& w, const Done& done) {
    if (rows <= 0) return;
    const int wide = panels(w);
    int pieces = (rows + 95) / 96;  // a panel stays in the cache from one piece to the next
    if (wide >= 8 * pool.threads()) pieces = 1 + (rows - 1) / 1024;
    const int per = (((rows + pieces - 1) / pieces) + ROWS - 1) / ROWS * ROWS;
    pool.for_each(wide * pieces, [&](int task, int) {
        const int p = task / pieces, from = (task % pieces) * per;
        const int to = from + per < rows ? from + per : rows;
        if (from < to) rows_by_panel(x, from, to, w, panel_of(w, p), done);
    }, product_cost(w, rows));
}

inline void put(float* y, const float* values, int n) { memcpy(y, values, size_t(n) * 4); }
inline void put_bf16(uint16_t* y, const float* values, int n) {
    for (int i = 0; i < n; i += 16) store_bf16(y + i, load(values + i));
}

}  // namespace
