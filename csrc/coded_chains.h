// Rows times a panel of few-bit weights in vector registers. Every output is one chain of additions over the k of a
// cell, and one over the cells from first to last, whatever the number of rows and threads.
//
// A chunk of k is widened into a scratch in the first-level cache, and all rows meet it there.
#pragma once
#include "coded_bytes.h"
#include "coded_rows.h"
#include "coded_widen.h"

namespace {

constexpr int CODED_ROWS = 96;  // that meet a chunk while it is in the cache: their sums are in the second level
constexpr int CODED_TOGETHER = 6;

struct ByPairs {  // dot products of bf16 pairs
    using Word = uint32_t;
    static constexpr bool pairs = true;
    static const Word* row(const CodedRows& x, int i) { return x.pairs(i); }
    static vf step(vf acc, Word x, vi w) { return dot2(acc, splat_word(x), w); }
};
struct BySingles {  // f32 multiply-adds
    using Word = float;
    static constexpr bool pairs = false;
    static const Word* row(const CodedRows& x, int i) { return x.wide(i); }
    static vf step(vf acc, Word x, vi w) { return fma(splat(x), as_float(w), acc); }
};

// `count` cells of `steps` words each, from x[m] and sums[m] on; totals [rows][64] of these rows.
template <class By> struct CodedMeeting {
    const CodedChunk& chunk;
    int V, count, steps;
    const typename By::Word* x[CODED_TOGETHER];
    const float* sums[CODED_TOGETHER];
    float* totals;
};

// N vectors of outputs from v on, of M rows.
template <class By, bool Mins, int M, int N> void meet_vectors(const CodedMeeting<By>& a, int v) {
    const uint8_t* w = a.chunk.words + v * 64;
    const int wide = a.V * 64;
    const typename By::Word* x[M];
    NX_UNROLL for (int m = 0; m < M; ++m) x[m] = a.x[m];
    for (int c = 0, k = 0; c < a.count; ++c) {
        const int at = c * PANEL + v * 16;
        vf acc[M][N];
        NX_UNROLL for (int m = 0; m < M; ++m) {
            const vf sum = splat(a.sums[m][c]);
            NX_UNROLL for (int n = 0; n < N; ++n) acc[m][n] = mul(sum, load(a.chunk.starts + at + n * 16));
        }
        for (const int end = k + a.steps; k < end; ++k, w += wide) {
            vi wv[N];
            NX_UNROLL for (int n = 0; n < N; ++n) wv[n] = words(w + n * 64);
            NX_UNROLL for (int m = 0; m < M; ++m)
                NX_UNROLL for (int n = 0; n < N; ++n) acc[m][n] = By::step(acc[m][n], x[m][k], wv[n]);
        }
        NX_UNROLL for (int m = 0; m < M; ++m)
            NX_UNROLL for (int n = 0; n < N; ++n) {
                float* to = a.totals + m * PANEL + (v + n) * 16;
                vf total = fma(load(a.chunk.scales + at + n * 16), acc[m][n], load(to));
                if constexpr (Mins) total = fma(load(a.chunk.mins + at + n * 16), splat(a.sums[m][c]), total);
                store(to, total);
            }
    }
}

// As many vectors together as there are registers for their sums.
template <class By, bool Mins, int M> void meet_rows(const CodedMeeting<By>& a) {
#if defined(__AVX512F__)
    constexpr int N = 4;
#else
    constexpr int N = M == 1 ? 4 : M <= 3 ? 2 : 1;
#endif
    int v = 0;
    for (; v + N <= a.V; v += N) meet_vectors<By, Mins, M, N>(a, v);
    if constexpr (N > 2) if (v + 2 <= a.V) meet_vectors<By, Mins, M, 2>(a, v), v += 2;
    if constexpr (N > 1) if (v < a.V) meet_vectors<By, Mins, M, 1>(a, v);
}

template <class By, bool Mins> inline void meet(const CodedMeeting<By>& a, int rows) {
    switch (rows) {
        case 1: return meet_rows<By, Mins, 1>(a);
        case 2: return meet_rows<By, Mins, 2>(a);
        case 3: return meet_rows<By, Mins, 3>(a);
        case 4: return meet_rows<By, Mins, 4>(a);
        case 5: return meet_rows<By, Mins, 5>(a);
        default: return meet_rows<By, Mins, 6>(a);
    }
}

// totals [m][64] = m <= CODED_ROWS rows from `first` on times a panel.
template <class By> void coded_product(const CodedRows& x, int first, int m, const NxWeight& w, const Panel& panel, float* totals) {
    static thread_local CodedChunk chunk;
    const bool mins = coded_layout(w.kind).mins;
    const int inputs = x.inputs(), cells = x.cells(), steps = inputs / (By::pairs ? 2 : 1);
    const int wanted = m <= CODED_TOGETHER ? 32 : By::pairs ? 128 : 64, each = wanted > inputs ? wanted / inputs : 1;
    for (int i = 0; i < m * PANEL; i += 16) store(totals + i, zero());
    for (int from = 0; from < cells; from += each) {
        const int to = from + each < cells ? from + each : cells;
        widen_chunk<By::pairs>(w, panel, from, to, chunk);
        for (int i = 0; i < m; i += CODED_TOGETHER) {
            const int some = m - i < CODED_TOGETHER ? m - i : CODED_TOGETHER;
            CodedMeeting<By> a{chunk, panel.vectors, to - from, steps, {}, {}, totals + i * PANEL};
            for (int j = 0; j < some; ++j) {
                a.x[j] = By::row(x, first + i + j) + from * steps;
                a.sums[j] = x.sums(first + i + j) + from;
            }
            mins ? meet<By, true>(a, some) : meet<By, false>(a, some);
        }
    }
}

#if defined(__AVX512BF16__)
inline bool coded_by_pairs(const NxWeight& w) { return w.way != 3; }
#else
inline bool coded_by_pairs(const NxWeight&) { return false; }
#endif

// As chains_by_panel, of taken rows.
template <class Done>
inline void coded_by_panel(const CodedRows& x, int from, int to, const NxWeight& w, const Panel& panel, const Done& done) {
#if defined(NX_BYTES)
    if (by_bytes(w)) return bytes_by_panel(x.bytes(), from, to, w, panel, done);
#endif
    alignas(64) float totals[CODED_ROWS * PANEL];
    for (int i = from; i < to; i += CODED_ROWS) {
        const int m = to - i < CODED_ROWS ? to - i : CODED_ROWS;
#if defined(__AVX512BF16__)
        if (coded_by_pairs(w)) coded_product<ByPairs>(x, i, m, w, panel, totals);
        else
#endif
        coded_product<BySingles>(x, i, m, w, panel, totals);
        for (int j = 0; j < m; ++j) done(i + j, panel.first, panel.vectors * 16, totals + j * PANEL);
    }
}

}  // namespace
