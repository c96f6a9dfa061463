// Rows times a panel in vector registers: every output is one chain of additions over k from first to last,
// whatever the number of rows and threads. That is all that row invariance needs.
//
// Six rows by 64 outputs are worked on together, so a panel is read once for every six rows.
#pragma once
#include <type_traits>

#include "panels.h"
#include "simd.h"

namespace {

constexpr int CHAIN_ROWS = 6;  // 6 x 4 accumulators, 4 weights and a spare of 32 registers

struct LoadF32 {
    static constexpr int bytes = 64;
    static vf step(vf acc, uint32_t x, const uint8_t* w) { return fma(as_float(splat_word(x)), as_float(words(w)), acc); }
};
struct LoadBf16 { static constexpr int bytes = 64; static vi get(const uint8_t* w) { return words(w); } };
struct LoadE4m3 { static constexpr int bytes = 32; static vi get(const uint8_t* w) { return widen_e4m3(w); } };
struct LoadInt8 { static constexpr int bytes = 32; static vi get(const uint8_t* w) { return widen_int8(w); } };

// x: M rows of words. acc[M][V] += the products.
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
#if defined(__AMX_BF16__)
const Product CHAINS[1][CHAIN_ROWS][4] = {NX_M(LoadF32)};  // the rest is for tiles.h
#else
const Product CHAINS[4][CHAIN_ROWS][4] = {NX_M(LoadF32), NX_M(LoadBf16), NX_M(LoadE4m3), NX_M(LoadInt8)};
#endif
#undef NX_M
#undef NX_V

// Rows [from, to) of x against one panel; done(i, first output, number of outputs, 64 floats) for each row.
template <class Done>
inline void chains_by_panel(const Rows& x, int from, int to, const NxWeight& w, const Panel& panel, const Done& done) {
    alignas(64) float tile[CHAIN_ROWS * PANEL];
    const int steps = row_words(w), block = block_words(w);
    for (int i = from; i < to;) {
        const int m = to - i < CHAIN_ROWS ? to - i : CHAIN_ROWS;
        const uint32_t* rows[CHAIN_ROWS];
        for (int j = 0; j < m; ++j) rows[j] = x(i + j);
        CHAINS[w.kind][m - 1][panel.vectors - 1](rows, panel.data, panel.scales, steps, block, tile);
        for (int j = 0; j < m; ++j) done(i + j, panel.first, panel.vectors * 16, tile + j * PANEL);
        i += m;
    }
}

}  // namespace
