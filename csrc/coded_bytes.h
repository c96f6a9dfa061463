// Rows of bytes times a panel of few-bit weights: dot products of four bytes at once (AVX512-VNNI). The sum of
// a cell is an integer, so it is exact. It is scaled when it is complete, and cells are added from first to
// last. A row's result depends only on the row and the weight.
#pragma once
#include "byte_rows.h"
#include "cells.h"

#if defined(NX_BYTES)
namespace {

constexpr int BYTE_ROWS = 48;     // rows that are multiplied by some cells while these are in the cache
constexpr int BYTE_TOGETHER = 6;  // rows by 64 outputs: 24 sums in registers
constexpr int BYTE_CELLS = 8;     // cells widened at once

struct ByteCells {
    alignas(64) uint8_t words[BYTE_CELLS * 32 * PANEL];  // [four inputs][outputs]
    alignas(64) float scales[BYTE_CELLS * PANEL];        // [cell][outputs], also mins
    alignas(64) float mins[BYTE_CELLS * PANEL];
};

// Moves n bits of w from bit `from` to bit `to`, in both halves of each word, and puts them beside others.
inline vi moved(vi w, int from, int n, int to, vi beside) {
    return picked(shifted(w, to - from), ((1u << n) - 1) * 0x10001u << to, beside);
}

// to <- a cell's codes as bytes, in the order of ByteRows. coded.h has their layout in words.
template <int BITS> inline void bytes_of(const uint8_t* codes, int inputs, int V, uint8_t* to) {
    constexpr int ahead = 2048;
    const int step = V * 64;
    const vi none = splat_word(0);
    const int lines = inputs * BITS / 32;
    for (int i = 0; i < lines * step; i += 64) __builtin_prefetch(codes + ahead + i);
    if constexpr (BITS == 8) {
        for (int i = 0; i < lines * step; i += 64) store_words(to + i, words(codes + i));
    } else if constexpr (BITS == 4) {
        const vi low = splat_word(0x0f0f0f0fu);
        for (int l = 0; l < lines; ++l, codes += step, to += 2 * step)
            for (int v = 0; v < step; v += 64) {
                const vi w = words(codes + v);
                store_words(to + v, _mm512_and_si512(w, low));
                store_words(to + step + v, _mm512_and_si512(_mm512_srli_epi32(w, 4), low));
            }
    } else if constexpr (BITS == 5) {
        for (int v = 0; v < step; v += 64) {
            vi w[5], last = none;
            NX_UNROLL for (int i = 0; i < 5; ++i) {
                w[i] = words(codes + i * step + v);
                last = moved(w[i], 15, 1, 8 + i, last);
            }
            constexpr int place[5] = {0, 1, 2, 4, 5};
            NX_UNROLL for (int i = 0; i < 5; ++i)
                store_words(to + place[i] * step + v, moved(w[i], 5, 5, 8, moved(w[i], 0, 5, 0, none)));
            store_words(to + 3 * step + v, moved(w[1], 10, 5, 8, moved(w[0], 10, 5, 0, none)));
            store_words(to + 6 * step + v, moved(w[3], 10, 5, 8, moved(w[2], 10, 5, 0, none)));
            store_words(to + 7 * step + v, moved(w[4], 10, 5, 0, last));
        }
    } else {
        for (int v = 0; v < step; v += 64) {
            vi w[3];
            NX_UNROLL for (int i = 0; i < 3; ++i) {
                w[i] = words(codes + i * step + v);
                store_words(to + i * step + v, moved(w[i], 6, 6, 8, moved(w[i], 0, 6, 0, none)));
            }
            const vi first = moved(w[2], 12, 2, 4, moved(w[0], 12, 4, 0, none));
            store_words(to + 3 * step + v, moved(w[2], 14, 2, 12, moved(w[1], 12, 4, 8, first)));
        }
    }
}

// chunk <- cells [from, to).
template <int BITS, bool Mins> void byte_cells(const Cells& cells, int from, int to, ByteCells& chunk) {
    for (int c = from; c < to; ++c) {
        for (int v = 0; v < cells.V; ++v) {
            const CellScale found = cells.scale<Mins ? MINS : STARTED>(c, v);
            store(chunk.scales + (c - from) * PANEL + v * 16, found.scale);
            if constexpr (Mins) store(chunk.mins + (c - from) * PANEL + v * 16, found.min);
        }
        bytes_of<BITS>(cells.codes<CodeLine<BITS>>(c), cells.inputs, cells.V,
                       chunk.words + (c - from) * cells.inputs * cells.V * 16);
    }
}

inline void byte_chunk(const Cells& cells, int from, int to, ByteCells& chunk) {
    const bool mins = cells.coded->mins;
    switch (cells.coded->bits) {
        case 4: return mins ? byte_cells<4, true>(cells, from, to, chunk) : byte_cells<4, false>(cells, from, to, chunk);
        case 5: return mins ? byte_cells<5, true>(cells, from, to, chunk) : byte_cells<5, false>(cells, from, to, chunk);
        case 6: return byte_cells<6, false>(cells, from, to, chunk);
        default: return byte_cells<8, false>(cells, from, to, chunk);
    }
}

// The operands of up to BYTE_TOGETHER rows and `count` cells. steps: words of four inputs in a cell. x, start,
// scale, sums: of each row, from these cells on. totals [rows][64].
struct ByteProduct {
    const ByteCells& chunk;
    int V, count, steps;
    const int32_t* x[BYTE_TOGETHER];
    const int32_t* start[BYTE_TOGETHER];
    const float *scale[BYTE_TOGETHER], *sums[BYTE_TOGETHER];
    float* totals;
};

// acc += the products of four bytes each, w's unsigned and x's signed. As assembly, not an intrinsic: then the
// file compiles without VNNI, and GCC 12 keeps 24 sums in registers.
inline void dot4(vi& acc, vi w, vi x) { asm("vpdpbusd %2, %1, %0" : "+v"(acc) : "v"(w), "v"(x)); }

// N vectors of outputs from v on, for M rows.
template <bool Mins, int M, int N> inline void multiply_byte_vectors(const ByteProduct& a, int v) {
    const uint8_t* w = a.chunk.words + v * 64;
    const int wide = a.V * 64;
    const int32_t* x[M];
    NX_UNROLL for (int m = 0; m < M; ++m) x[m] = a.x[m];
    for (int c = 0, k = 0; c < a.count; ++c) {
        vi acc[M][N];
        NX_UNROLL for (int m = 0; m < M; ++m) {
            const vi begin = _mm512_set1_epi32(a.start[m][c]);
            NX_UNROLL for (int n = 0; n < N; ++n) acc[m][n] = begin;
        }
        const int end = k + a.steps;
        do {
            vi wv[N];
            NX_UNROLL for (int n = 0; n < N; ++n) wv[n] = words(w + n * 64);
            NX_UNROLL for (int m = 0; m < M; ++m) {
                const vi xm = splat_word(x[m][k]);
                NX_UNROLL for (int n = 0; n < N; ++n) dot4(acc[m][n], wv[n], xm);
            }
            w += wide;
        } while (++k < end);
        const float *scales = a.chunk.scales + c * PANEL + v * 16, *mins = a.chunk.mins + c * PANEL + v * 16;
        NX_UNROLL for (int m = 0; m < M; ++m) {
            const vf scale = splat(a.scale[m][c]);
            NX_UNROLL for (int n = 0; n < N; ++n) {
                float* to = a.totals + m * PANEL + (v + n) * 16;
                const vf sum = mul(_mm512_cvtepi32_ps(acc[m][n]), load(scales + n * 16));
                vf total = fma(sum, scale, load(to));
                if constexpr (Mins) total = fma(load(mins + n * 16), splat(a.sums[m][c]), total);
                store(to, total);
            }
        }
    }
}

template <bool Mins, int M> void multiply_byte_rows(const ByteProduct& a) {
    int v = 0;
    for (; v + 4 <= a.V; v += 4) multiply_byte_vectors<Mins, M, 4>(a, v);
    if (v + 2 <= a.V) multiply_byte_vectors<Mins, M, 2>(a, v), v += 2;
    if (v < a.V) multiply_byte_vectors<Mins, M, 1>(a, v);
}

template <bool Mins> inline void multiply_bytes(const ByteProduct& a, int rows) {
    switch (rows) {
        case 1: return multiply_byte_rows<Mins, 1>(a);
        case 2: return multiply_byte_rows<Mins, 2>(a);
        case 3: return multiply_byte_rows<Mins, 3>(a);
        case 4: return multiply_byte_rows<Mins, 4>(a);
        case 5: return multiply_byte_rows<Mins, 5>(a);
        default: return multiply_byte_rows<Mins, 6>(a);
    }
}

// As chains_by_panel, for rows of bytes.
template <class Done>
inline void bytes_by_panel(const ByteRows& x, int from, int to, const NxWeight& w, const Panel& panel, const Done& done) {
    static thread_local ByteCells chunk;
    alignas(64) float totals[BYTE_ROWS * PANEL];
    const bool mins = coded_layout(w.kind).mins;
    const Cells held(w, panel);
    const int cells = x.cells(), steps = x.inputs() / 4;
    for (int first = from; first < to; first += BYTE_ROWS) {
        const int m = to - first < BYTE_ROWS ? to - first : BYTE_ROWS;
        for (int i = 0; i < m * PANEL; i += 16) store(totals + i, zero());
        for (int c = 0; c < cells; c += BYTE_CELLS) {
            const int end = c + BYTE_CELLS < cells ? c + BYTE_CELLS : cells;
            byte_chunk(held, c, end, chunk);
            for (int i = 0; i < m; i += BYTE_TOGETHER) {
                const int some = m - i < BYTE_TOGETHER ? m - i : BYTE_TOGETHER;
                ByteProduct a{chunk, panel.vectors, end - c, steps, {}, {}, {}, {}, totals + i * PANEL};
                for (int j = 0; j < some; ++j) {
                    const int row = first + i + j;
                    a.x[j] = x.words(row) + c * steps;
                    a.start[j] = x.start(row) + c, a.scale[j] = x.scale(row) + c, a.sums[j] = x.sums(row) + c;
                }
                mins ? multiply_bytes<true>(a, some) : multiply_bytes<false>(a, some);
            }
        }
        for (int j = 0; j < m; ++j) done(first + j, panel.first, panel.vectors * 16, totals + j * PANEL);
    }
}

}  // namespace
#endif
