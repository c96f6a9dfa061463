// Rows of bytes times unpacked codes. The sum of a cell is an integer, so it is exact. It is scaled when it is
// complete, and cells are added from first to last. A row's result depends only on the row and the weight, and
// is the same at every level.
//
//     AVX512-VNNI  dot products of four bytes, summed in 32 bits
//     AVX2         dot products of two bytes, summed in 16 bits (32 for codes of 8 bits)
#pragma once
#include "byte_rows.h"
#include "cells.h"

#if defined(NX_BYTES)
namespace {

constexpr int BYTE_ROWS = 48;     // rows that are multiplied by some cells while these are in the cache
constexpr int BYTE_TOGETHER = 6;  // rows by 64 outputs: 24 sums in registers; by 16 outputs with AVX2: 12 sums
constexpr int BYTE_CELLS = 8;     // cells widened at once

struct ByteCells {
    alignas(64) uint8_t words[BYTE_CELLS * 32 * PANEL];  // [four inputs][outputs]
    alignas(64) float scales[BYTE_CELLS * PANEL];        // [cell][outputs], also mins
    alignas(64) float mins[BYTE_CELLS * PANEL];
};

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

#if defined(__AVX512F__)
// acc += the products of four bytes each, w's unsigned and x's signed. As assembly, not an intrinsic: then the
// file compiles without VNNI, and GCC 12 keeps 24 sums in registers.
using ByteSum = vi;
inline ByteSum splat_sum(uint32_t x) { return splat_word(x); }
template <int> inline void dot4(ByteSum& acc, vi w, vi x) { asm("vpdpbusd %2, %1, %0" : "+v"(acc) : "v"(w), "v"(x)); }

// N vectors of outputs from v on, for M rows.
template <int FORM, int M, int N> inline void multiply_byte_vectors(const ByteProduct& a, int v) {
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
                NX_UNROLL for (int n = 0; n < N; ++n) dot4<FORM>(acc[m][n], wv[n], xm);
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
                if constexpr (FORM == MINS) total = fma(load(mins + n * 16), splat(a.sums[m][c]), total);
                store(to, total);
            }
        }
    }
}

template <int FORM, int M> void multiply_byte_rows(const ByteProduct& a) {
    int v = 0;
    for (; v + 4 <= a.V; v += 4) multiply_byte_vectors<FORM, M, 4>(a, v);
    if (v + 2 <= a.V) multiply_byte_vectors<FORM, M, 2>(a, v), v += 2;
    if (v < a.V) multiply_byte_vectors<FORM, M, 1>(a, v);
}
#else
using ByteSum = __m256i;
inline ByteSum splat_sum(uint32_t x) { return _mm256_set1_epi32(int(x)); }
// Sums of neighbours: of 16 bits in 32.
inline __m256i pair_sums(__m256i x) { return _mm256_madd_epi16(x, _mm256_set1_epi16(1)); }

// acc += the products of four bytes each, w's unsigned and x's signed.
//
// Codes below 64 are summed in 16 bits, two products in each. A cell's sum fits if the codes are reduced by
// their middle: start_word does this. What wraps around on the way wraps back.
//
// Codes of 8 bits (SCALED) are summed in 32 bits. The sign of the code is moved to the input: two products are
// then at most 2 * 128 * 127.
//
// The additions are assembly, so that GCC 12 keeps the sums in registers.
template <int FORM> inline void dot4(ByteSum& acc, __m256i w, __m256i x) {
    if constexpr (FORM == SCALED) {
        const __m256i code = _mm256_xor_si256(w, _mm256_set1_epi8(-128));
        const __m256i products = _mm256_maddubs_epi16(_mm256_abs_epi8(code), _mm256_sign_epi8(x, code));
        asm("vpaddd %1, %0, %0" : "+x"(acc) : "x"(pair_sums(products)));
    } else {
        asm("vpaddw %1, %0, %0" : "+x"(acc) : "x"(_mm256_maddubs_epi16(w, x)));
    }
}

// N vectors of outputs from v on, for M rows.
template <int FORM, int M, int N> [[gnu::noinline]] void multiply_byte_vectors(const ByteProduct& a, int v) {
    constexpr int R = 2 * N;  // registers of 8 outputs
    const uint8_t* w = a.chunk.words + v * 64;
    const int wide = a.V * 64;
    const int32_t* x[M];
    NX_UNROLL for (int m = 0; m < M; ++m) x[m] = a.x[m];
    for (int c = 0, k = 0; c < a.count; ++c) {
        ByteSum acc[M][R];
        NX_UNROLL for (int m = 0; m < M; ++m) {
            const ByteSum begin = splat_sum(FORM == SCALED ? 0u : uint32_t(a.start[m][c]));
            NX_UNROLL for (int r = 0; r < R; ++r) acc[m][r] = begin;
        }
        const int end = k + a.steps;
        do {
            __m256i wv[R];
            NX_UNROLL for (int r = 0; r < R; ++r) wv[r] = _mm256_load_si256(reinterpret_cast<const __m256i*>(w) + r);
            NX_UNROLL for (int m = 0; m < M; ++m) {
                const __m256i xm = _mm256_set1_epi32(x[m][k]);
                NX_UNROLL for (int r = 0; r < R; ++r) dot4<FORM>(acc[m][r], wv[r], xm);
            }
            w += wide;
        } while (++k < end);
        const float *scales = a.chunk.scales + c * PANEL + v * 16, *mins = a.chunk.mins + c * PANEL + v * 16;
        NX_UNROLL for (int m = 0; m < M; ++m) {
            const __m256 scale = _mm256_set1_ps(a.scale[m][c]);
            NX_UNROLL for (int r = 0; r < R; ++r) {
                __m256i whole = FORM == SCALED ? acc[m][r] : pair_sums(acc[m][r]);
                // With mins the code of zero is 0, so what the codes were reduced by is added again.
                if constexpr (FORM == MINS)
                    whole = _mm256_sub_epi32(whole, pair_sums(splat_sum(uint32_t(a.start[m][c]))));
                float* to = a.totals + m * PANEL + v * 16 + r * 8;
                const __m256 sum = _mm256_mul_ps(_mm256_cvtepi32_ps(whole), _mm256_load_ps(scales + r * 8));
                __m256 total = _mm256_fmadd_ps(sum, scale, _mm256_load_ps(to));
                if constexpr (FORM == MINS)
                    total = _mm256_fmadd_ps(_mm256_load_ps(mins + r * 8), _mm256_set1_ps(a.sums[m][c]), total);
                _mm256_store_ps(to, total);
            }
        }
    }
}

template <int FORM, int M> void multiply_byte_rows(const ByteProduct& a) {
    constexpr int most = M == 1 ? 4 : M == 2 ? 2 : 1;
    int v = 0;
    for (; v + most <= a.V; v += most) multiply_byte_vectors<FORM, M, most>(a, v);
    if constexpr (most > 1) for (; v < a.V; ++v) multiply_byte_vectors<FORM, M, 1>(a, v);
}
#endif

template <int FORM> inline void multiply_bytes(const ByteProduct& a, int rows) {
    switch (rows) {
        case 1: return multiply_byte_rows<FORM, 1>(a);
        case 2: return multiply_byte_rows<FORM, 2>(a);
        case 3: return multiply_byte_rows<FORM, 3>(a);
        case 4: return multiply_byte_rows<FORM, 4>(a);
        case 5: return multiply_byte_rows<FORM, 5>(a);
        default: return multiply_byte_rows<FORM, 6>(a);
    }
}

}  // namespace
#endif
