// Rows of bytes times a panel of few-bit weights: dot products of four bytes at once (AVX512-VNNI). A cell's sum is
// whole numbers, so it is exact; it is scaled when it is complete, and cells are added from first to last. What a row
// gets depends on nothing but the row and the weight.
//
// The inputs are rounded to 8 bits. That is what llama.cpp computes from the same files, and not what the other ways
// of multiplying such weights do, which take inputs in bf16.
#pragma once
#include "panels.h"

namespace {

constexpr int BY_BYTES = 4;  // NxWeight::way

#if defined(__AVX512F__) && defined(__GNUC__)
#define NX_BYTES 1
inline bool by_bytes_here() { return __builtin_cpu_supports("avx512vnni"); }
inline bool by_bytes(const NxWeight& w) { return w.way == BY_BYTES; }
#else
inline bool by_bytes_here() { return false; }
inline bool by_bytes(const NxWeight&) { return false; }
#endif

}  // namespace

#if defined(NX_BYTES)
#include "byte_rows.h"
#include "coded_widen.h"


namespace {

constexpr int BYTE_ROWS = 48;     // that meet some cells while these are in the cache
constexpr int BYTE_TOGETHER = 6;  // rows by 64 outputs: 24 sums in registers
constexpr int BYTE_CELLS = 8;     // widened at once

struct ByteCells {
    alignas(64) uint8_t words[BYTE_CELLS * 32 * PANEL];  // [four inputs][outputs]
    alignas(64) float scales[BYTE_CELLS * PANEL];        // [cell][outputs], as the following
    alignas(64) float mins[BYTE_CELLS * PANEL];
    alignas(64) float unused[BYTE_CELLS * PANEL];
};

// A cell's codes as bytes, in the order of ByteRows.
template <int BITS> inline void bytes_of(const uint8_t* codes, int inputs, int V, uint8_t* to) {
    constexpr int ahead = 2048;
    const int step = V * 64;
    if constexpr (BITS == 8) {
        for (int i = 0; i < inputs / 4 * step; i += 64) {
            __builtin_prefetch(codes + ahead + i);
            store_words(to + i, words(codes + i));
        }
    } else {
        const uint8_t* high = codes + inputs / 8 * step;
        const vi low = splat_word(0x0f0f0f0fu);
        const auto line = [&](auto number) {
            constexpr int l = decltype(number)::value, p = 4 * l;
            for (int v = 0; v < step; v += 64) {
                __builtin_prefetch(codes + ahead + v);
                const vi w = words(codes + v);
                vi a = _mm512_and_si512(w, low), b = _mm512_and_si512(_mm512_srli_epi32(w, 4), low);
                if constexpr (BITS == 5) {
                    const vi h = words(high + v);
                    a = picked(shifted(h, 4 - p), 0x00100010u, picked(shifted(h, 10 - p), 0x10001000u, a));
                    b = picked(shifted(h, 3 - p), 0x00100010u, picked(shifted(h, 9 - p), 0x10001000u, b));
                }
                if constexpr (BITS == 6) {
                    const vi h = words(high + v);
                    a = picked(shifted(h, 4 - 2 * p), 0x00300030u, picked(shifted(h, 8 - 2 * p), 0x30003000u, a));
                    b = picked(shifted(h, 2 - 2 * p), 0x00300030u, picked(shifted(h, 6 - 2 * p), 0x30003000u, b));
                }
                store_words(to + v, a);
                store_words(to + step + v, b);
            }
            codes += step, to += 2 * step;
        };
        line(std::integral_constant<int, 0>());
        line(std::integral_constant<int, 1>());
        if constexpr (BITS != 6) line(std::integral_constant<int, 2>()), line(std::integral_constant<int, 3>());
        if constexpr (BITS > 4) for (int v = 0; v < step; v += 64) __builtin_prefetch(high + v + ahead);
    }
}

template <int BITS>
void byte_cells(int kind, const uint8_t* panel, int V, int from, int to, ByteCells& chunk) {
    const CodedLayout& l = coded_layout(kind);
    const int inputs = l.cell;
    for (int c = from; c < to; ++c) {
        const Cell cell = cell_of(l, 0, panel, V * 16, c);
        const int at = (c - from) * PANEL;
        cell_scales(kind, l, cell, V, chunk.scales + at, chunk.unused + at, chunk.mins + at);
        bytes_of<BITS>(cell.codes, inputs, V, chunk.words + (c - from) * inputs * V * 16);
    }
}

inline void byte_chunk(const NxWeight& w, const Panel& panel, int from, int to, ByteCells& chunk) {
    switch (coded_layout(w.kind).bits) {
        case 4: return byte_cells<4>(w.kind, panel.data, panel.vectors, from, to, chunk);
        case 5: return byte_cells<5>(w.kind, panel.data, panel.vectors, from, to, chunk);
        case 6: return byte_cells<6>(w.kind, panel.data, panel.vectors, from, to, chunk);
        default: return byte_cells<8>(w.kind, panel.data, panel.vectors, from, to, chunk);
    }
}

// `count` cells of `steps` words of four inputs, from those of each row on; totals [rows][64] of these rows.
struct ByteMeeting {
    const ByteCells& chunk;
    int V, count, steps;
    const int32_t* x[BYTE_TOGETHER];
    const int32_t* start[BYTE_TOGETHER];
    const float *scale[BYTE_TOGETHER], *sums[BYTE_TOGETHER];
    float* totals;
};

// acc += the products of four bytes each, w's unsigned and x's signed. As an instruction, not an intrinsic: then the
// file needs no VNNI to be compiled, and GCC 12 keeps 24 such sums in registers.
inline void dot4(vi& acc, vi w, vi x) { asm("vpdpbusd %2, %1, %0" : "+v"(acc) : "v"(w), "v"(x)); }

// N vectors of outputs from v on, of M rows.
template <bool Mins, int M, int N> inline void meet_byte_vectors(const ByteMeeting& a, int v) {
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

template <bool Mins, int M> void meet_byte_rows(const ByteMeeting& a) {
    int v = 0;
    for (; v + 4 <= a.V; v += 4) meet_byte_vectors<Mins, M, 4>(a, v);
    if (v + 2 <= a.V) meet_byte_vectors<Mins, M, 2>(a, v), v += 2;
    if (v < a.V) meet_byte_vectors<Mins, M, 1>(a, v);
}

template <bool Mins> inline void meet_bytes(const ByteMeeting& a, int rows) {
    switch (rows) {
        case 1: return meet_byte_rows<Mins, 1>(a);
        case 2: return meet_byte_rows<Mins, 2>(a);
        case 3: return meet_byte_rows<Mins, 3>(a);
        case 4: return meet_byte_rows<Mins, 4>(a);
        case 5: return meet_byte_rows<Mins, 5>(a);
        default: return meet_byte_rows<Mins, 6>(a);
    }
}

// As coded_by_panel.
template <class Done>
inline void bytes_by_panel(const ByteRows& x, int from, int to, const NxWeight& w, const Panel& panel, const Done& done) {
    static thread_local ByteCells chunk;
    alignas(64) float totals[BYTE_ROWS * PANEL];
    const bool mins = coded_layout(w.kind).mins;
    const int cells = x.cells(), steps = x.inputs() / 4;
    for (int first = from; first < to; first += BYTE_ROWS) {
        const int m = to - first < BYTE_ROWS ? to - first : BYTE_ROWS;
        for (int i = 0; i < m * PANEL; i += 16) store(totals + i, zero());
        for (int c = 0; c < cells; c += BYTE_CELLS) {
            const int end = c + BYTE_CELLS < cells ? c + BYTE_CELLS : cells;
            byte_chunk(w, panel, c, end, chunk);
            for (int i = 0; i < m; i += BYTE_TOGETHER) {
                const int some = m - i < BYTE_TOGETHER ? m - i : BYTE_TOGETHER;
                ByteMeeting a{chunk, panel.vectors, end - c, steps, {}, {}, {}, {}, totals + i * PANEL};
                for (int j = 0; j < some; ++j) {
                    const int row = first + i + j;
                    a.x[j] = x.words(row) + c * steps;
                    a.start[j] = x.start(row) + c, a.scale[j] = x.scale(row) + c, a.sums[j] = x.sums(row) + c;
                }
                mins ? meet_bytes<true>(a, some) : meet_bytes<false>(a, some);
            }
        }
        for (int j = 0; j < m; ++j) done(first + j, panel.first, panel.vectors * 16, totals + j * PANEL);
    }
}

}  // namespace
#endif
