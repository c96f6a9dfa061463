// Sixteen f32 lanes under the same names at every instruction set level.
//
// The level is given by the compiler's flags (-mavx512bf16 ...): this file is compiled once for each library.
// vf: 16 f32. vi: 16 words of 32 bits; a word holds a pair of bf16, the even element in its low half.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__AVX512F__) || defined(__AVX2__)
#include <immintrin.h>
#endif

#define NX_UNROLL _Pragma("GCC unroll 8")
#define NX_INLINE __attribute__((always_inline))  // for a lambda whose captures have to stay in registers

namespace {

inline float bits_float(uint32_t u) { float f; memcpy(&f, &u, 4); return f; }
inline uint32_t float_bits(float f) { uint32_t u; memcpy(&u, &f, 4); return u; }
inline float bf16_float(uint16_t b) { return bits_float(uint32_t(b) << 16); }

// Rounds to nearest, ties to even; NaN stays NaN.
inline uint16_t float_bf16(float f) {
    const uint32_t u = float_bits(f);
    if ((u & 0x7fffffffu) > 0x7f800000u) return uint16_t((u >> 16) | 0x40);
    return uint16_t((u + 0x7fffu + ((u >> 16) & 1)) >> 16);
}

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__)

using vf = __m512;
using vi = __m512i;
inline vf zero() { return _mm512_setzero_ps(); }
inline vf splat(float a) { return _mm512_set1_ps(a); }
inline vf load(const float* p) { return _mm512_loadu_ps(p); }
inline void store(float* p, vf a) { _mm512_storeu_ps(p, a); }
inline vf add(vf a, vf b) { return _mm512_add_ps(a, b); }
inline vf sub(vf a, vf b) { return _mm512_sub_ps(a, b); }
inline vf mul(vf a, vf b) { return _mm512_mul_ps(a, b); }
inline vf div(vf a, vf b) { return _mm512_div_ps(a, b); }
inline vf max(vf a, vf b) { return _mm512_max_ps(a, b); }
inline vf min(vf a, vf b) { return _mm512_min_ps(a, b); }
inline vf fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
inline void add_product(vf& acc, vf a, vf b) { acc = fma(a, b, acc); }
inline vf round_even(vf a) { return _mm512_roundscale_ps(a, 8); }
// 2**n for whole n in [-126, 127].
inline vf pow2(vf n) {
    return _mm512_castsi512_ps(
        _mm512_slli_epi32(_mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127)), 23));
}
inline vi words(const void* p) { return _mm512_loadu_si512(p); }
inline vi splat_word(uint32_t w) { return _mm512_set1_epi32(int(w)); }
inline vf low(vi w) { return _mm512_castsi512_ps(_mm512_slli_epi32(w, 16)); }
inline vf high(vi w) { return _mm512_castsi512_ps(_mm512_and_si512(w, _mm512_set1_epi32(int(0xffff0000u)))); }
inline vf as_float(vi w) { return _mm512_castsi512_ps(w); }
inline vf widen_bf16(const uint16_t* p) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p)), 16));
}
#if defined(__AVX512BF16__)
inline vf dot2(vf acc, vi a, vi b) { return _mm512_dpbf16_ps(acc, (__m512bh)a, (__m512bh)b); }
#else
inline vf dot2(vf acc, vi a, vi b) { return fma(high(a), high(b), fma(low(a), low(b), acc)); }
#endif
inline void store_bf16(uint16_t* p, vf a) {
#if defined(__AVX512BF16__)
    _mm256_storeu_si256((__m256i*)p, (__m256i)_mm512_cvtneps_pbh(a));
#else
    const __m512i u = _mm512_castps_si512(a);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    const __m512i r = _mm512_srli_epi32(_mm512_add_epi32(_mm512_add_epi32(u, _mm512_set1_epi32(0x7fff)), odd), 16);
    _mm256_storeu_si256((__m256i*)p, _mm512_cvtepi32_epi16(r));
#endif
}
// For each lane: e, or 0 if x is below the limit.
inline vf unless_below(vf x, float limit, vf e) {
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, _mm512_set1_ps(limit), _CMP_NLT_UQ), e);
}
inline float sum(vf a) { return _mm512_reduce_add_ps(a); }
inline float largest(vf a) { return _mm512_reduce_max_ps(a); }
// 16 e4m3 pairs (32 bytes) as bf16 pairs, exactly. widen_int8 does the same for int8.
inline vi widen_e4m3(const uint8_t* p) {
    const __m512i x = _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i*)p));
    const __m512i magnitude = _mm512_and_si512(_mm512_slli_epi16(x, 4), _mm512_set1_epi16(0x7f0));
    const __m512i normal = _mm512_add_epi16(magnitude, _mm512_set1_epi16(120 << 7));
    // m * 2**-9 for m < 8, as bf16.
    const __m512i small = _mm512_broadcast_i32x4(_mm_setr_epi16(
        0, 0x3b00, 0x3b80, 0x3bc0, 0x3c00, 0x3c20, 0x3c40, 0x3c60));
    const __mmask32 tiny = _mm512_testn_epi16_mask(x, _mm512_set1_epi16(0x78));
    const __m512i found = _mm512_mask_permutexvar_epi16(normal, tiny, x, small);
    return _mm512_ternarylogic_epi32(found, x, _mm512_set1_epi32(0x7fff7fff), 0xe4);  // with the sign of x
}
inline vi widen_int8(const uint8_t* p) {
    const __m512i x = _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i*)p));
    const __m512i even = _mm512_srai_epi32(_mm512_slli_epi32(x, 16), 16), odd = _mm512_srai_epi32(x, 16);
    const __m512i a = _mm512_castps_si512(_mm512_cvtepi32_ps(even)), b = _mm512_castps_si512(_mm512_cvtepi32_ps(odd));
    return _mm512_or_si512(_mm512_srli_epi32(a, 16), b);  // exact: bf16 holds all integers below 256
}
#if defined(__AVX512BF16__)
// Rows a and b of 32 bf16 -> pairs (a[c], b[c]) for 32 columns, in an order that store_columns restores.
inline void pair_rows(const uint16_t* a, const uint16_t* b, vi& first, vi& second) {
    const vi x = words(a), y = words(b);
    first = _mm512_unpacklo_epi16(x, y);
    second = _mm512_unpackhi_epi16(x, y);
}
// Indices by which store_columns picks columns from (first, second): columns 0-15, then 16-31.
inline __m512i low_columns() { return _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23); }
inline __m512i high_columns() { return _mm512_setr_epi32(8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31); }
#else
// One of the PARTS registers of a vf; here a vf is one register.
using part = vf;
constexpr int PARTS = 1;
inline part zero_part() { return zero(); }
inline part splat_part(float x) { return splat(x); }
inline part load_part(const float* p, int) { return load(p); }
inline void store_part(float* p, int, part x) { store(p, x); }
inline part& part_of(vf& x, int) { return x; }
// 32 bf16: the even elements as `low` gives them, the odd ones as `high` does.
inline void halves(const uint16_t* p, int, part& even, part& odd) {
    const vi w = words(p);
    even = low(w), odd = high(w);
}
// first: even columns; second: odd ones.
inline __m512i low_columns() { return _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23); }
inline __m512i high_columns() { return _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31); }
#endif
inline void store_columns(float* p, vf first, vf second) {
    store(p, _mm512_permutex2var_ps(first, low_columns(), second));
    store(p + 16, _mm512_permutex2var_ps(first, high_columns(), second));
}
// Lane i of the result is the sum of a[i]. The additions have the same tree for every i.
inline vf sums(const vf* a) {
    vf b[8], c[4];
    for (int i = 0; i < 8; ++i)
        b[i] = add(_mm512_unpacklo_ps(a[2 * i], a[2 * i + 1]), _mm512_unpackhi_ps(a[2 * i], a[2 * i + 1]));
    for (int i = 0; i < 4; ++i) {
        const __m512d x = _mm512_castps_pd(b[2 * i]), y = _mm512_castps_pd(b[2 * i + 1]);
        c[i] = add(_mm512_castpd_ps(_mm512_unpacklo_pd(x, y)), _mm512_castpd_ps(_mm512_unpackhi_pd(x, y)));
    }
    // c[i]: in each 128-bit lane the partial sums of rows 4i .. 4i+3
    const vf d0 = add(_mm512_shuffle_f32x4(c[0], c[1], 0x88), _mm512_shuffle_f32x4(c[0], c[1], 0xdd));
    const vf d1 = add(_mm512_shuffle_f32x4(c[2], c[3], 0x88), _mm512_shuffle_f32x4(c[2], c[3], 0xdd));
    return add(_mm512_shuffle_f32x4(d0, d1, 0x88), _mm512_shuffle_f32x4(d0, d1, 0xdd));
}

#elif defined(__AVX2__) && defined(__FMA__)
}  // namespace
#include "simd_avx2.h"
namespace {
#else
}  // namespace
#include "simd_portable.h"
namespace {
#endif

// e**x with a relative error below 2e-7 (Cephes). It is finite above 88. Below -64 it is 0: that does not
// change a sum that includes a number near 1. Products with smaller numbers would be denormal, which takes a
// hundred times as long.
inline vf exp(vf x) {
    constexpr float least = -64.f;
    const vf y = min(max(x, splat(least)), splat(88.3762626f));
    const vf n = round_even(mul(y, splat(1.44269504088896341f)));
    vf r = fma(n, splat(-0.693359375f), y);
    r = fma(n, splat(2.12194440e-4f), r);
    vf p = splat(1.9875691500e-4f);
    p = fma(p, r, splat(1.3981999507e-3f));
    p = fma(p, r, splat(8.3334519073e-3f));
    p = fma(p, r, splat(4.1665795894e-2f));
    p = fma(p, r, splat(1.6666665459e-1f));
    p = fma(p, r, splat(5.0000001201e-1f));
    p = fma(p, mul(r, r), add(r, splat(1.f)));
    return unless_below(x, least, mul(p, pow2(n)));
}

inline vf silu(vf x) { return div(x, add(splat(1.f), exp(sub(zero(), x)))); }

}  // namespace
