// Sixteen f32 lanes as two AVX2 registers: the functions that simd.h promises, with the order of additions of
// simd_portable.h.
#pragma once
#include <immintrin.h>

namespace {

struct vf { __m256 a, b; };
struct vi { __m256i a, b; };
inline vf zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
inline vf splat(float x) { const __m256 r = _mm256_set1_ps(x); return {r, r}; }
inline vf load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline void store(float* p, vf x) { _mm256_storeu_ps(p, x.a); _mm256_storeu_ps(p + 8, x.b); }
inline vf add(vf x, vf y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
inline vf sub(vf x, vf y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
inline vf mul(vf x, vf y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
inline vf div(vf x, vf y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
inline vf max(vf x, vf y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
inline vf min(vf x, vf y) { return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
inline vf fma(vf x, vf y, vf z) { return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)}; }
// acc += x * y. As assembly, not an intrinsic: with intrinsics GCC 12 moves sums between registers and to the
// stack.
inline void add_product(__m256& acc, __m256 x, __m256 y) { asm("vfmadd231ps %2, %1, %0" : "+x"(acc) : "x"(x), "x"(y)); }
inline void add_product(vf& acc, vf x, vf y) { add_product(acc.a, x.a, y.a); add_product(acc.b, x.b, y.b); }
inline vf as_float(vi w) { return {_mm256_castsi256_ps(w.a), _mm256_castsi256_ps(w.b)}; }
inline vi as_words(vf x) { return {_mm256_castps_si256(x.a), _mm256_castps_si256(x.b)}; }
inline vf round_even(vf x) { return {_mm256_round_ps(x.a, 8), _mm256_round_ps(x.b, 8)}; }
inline vi words(const void* p) {
    const __m256i* q = static_cast<const __m256i*>(p);
    return {_mm256_loadu_si256(q), _mm256_loadu_si256(q + 1)};
}
// Not with memcpy: GCC 12 would move the words through the stack.
inline void store_words(void* p, vi w) {
    __m256i* q = static_cast<__m256i*>(p);
    _mm256_storeu_si256(q, w.a), _mm256_storeu_si256(q + 1, w.b);
}
inline vi splat_word(uint32_t w) { const __m256i r = _mm256_set1_epi32(int(w)); return {r, r}; }
inline vi operator+(vi x, vi y) { return {_mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b)}; }
inline vi& operator+=(vi& x, vi y) { return x = x + y; }
inline vi operator&(vi x, vi y) { return {_mm256_and_si256(x.a, y.a), _mm256_and_si256(x.b, y.b)}; }
inline vi operator|(vi x, vi y) { return {_mm256_or_si256(x.a, y.a), _mm256_or_si256(x.b, y.b)}; }
inline vi operator^(vi x, vi y) { return {_mm256_xor_si256(x.a, y.a), _mm256_xor_si256(x.b, y.b)}; }
inline vi operator<<(vi x, int n) { return {_mm256_slli_epi32(x.a, n), _mm256_slli_epi32(x.b, n)}; }
inline vi operator>>(vi x, int n) { return {_mm256_srli_epi32(x.a, n), _mm256_srli_epi32(x.b, n)}; }
inline vf pow2(vf n) {
    const vi whole{_mm256_cvttps_epi32(n.a), _mm256_cvttps_epi32(n.b)};
    return as_float((whole + splat_word(127)) << 23);
}
inline vf low(vi w) { return as_float(w << 16); }
inline vf high(vi w) { return as_float(w & splat_word(0xffff0000u)); }
inline vi half_words(const void* p) {
    const __m128i* q = static_cast<const __m128i*>(p);
    return {_mm256_cvtepu16_epi32(_mm_loadu_si128(q)), _mm256_cvtepu16_epi32(_mm_loadu_si128(q + 1))};
}
inline vf widen_bf16(const uint16_t* p) { return as_float(half_words(p) << 16); }
inline vf dot2(vf acc, vi x, vi y) { return fma(high(x), high(y), fma(low(x), low(y), acc)); }
inline vf unless_below(vf x, float limit, vf e) {
    const __m256 least = _mm256_set1_ps(limit);
    return {_mm256_and_ps(_mm256_cmp_ps(x.a, least, _CMP_NLT_UQ), e.a),
            _mm256_and_ps(_mm256_cmp_ps(x.b, least, _CMP_NLT_UQ), e.b)};
}
inline __m256i rounded_bf16(__m256 x) {  // float_bf16 of each, in words
    const __m256i u = _mm256_castps_si256(x), odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    const __m256i near = _mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7fff)), odd);
    const __m256i quiet = _mm256_or_si256(u, _mm256_set1_epi32(0x400000));
    const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    return _mm256_srli_epi32(_mm256_blendv_epi8(near, quiet, is_nan), 16);
}
inline void store_bf16(uint16_t* p, vf x) {
    const __m256i packed = _mm256_packus_epi32(rounded_bf16(x.a), rounded_bf16(x.b));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permute4x64_epi64(packed, 0xd8));
}
inline float sum(vf x) {
    const __m256 eight = _mm256_add_ps(x.a, x.b);
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}
inline float largest(vf x) {
    alignas(32) float lanes[16];
    store(lanes, x);
    float m = lanes[0];
    for (float lane : lanes) m = lane > m ? lane : m;
    return m;
}
// The two bytes of a bf16 are looked up by the halves of a code's byte. The high byte is sign and exponent +
// 60, looked up by the high half. The low byte has the low half of the code in its upper four bits. For
// magnitudes below 8 the result is too large. The correction is looked up by code + 0x78; for sums above 0x7f
// the lookup gives 0.
inline vi widen_e4m3(const uint8_t* p) {
    const __m256i high = _mm256_broadcastsi128_si256(_mm_setr_epi8(
        60, 61, 62, 63, 64, 65, 66, 67, -68, -67, -66, -65, -64, -63, -62, -61));
    const __m256i small_high = _mm256_broadcastsi128_si256(_mm_setr_epi8(
        0, 0, 0, 0, 0, 0, 0, 0, -60, -1, -1, -1, 0, 0, 0, 0));
    const __m256i small_low = _mm256_broadcastsi128_si256(_mm_setr_epi8(
        0, 0, 0, 0, 0, 0, 0, 0, 0, -0x10, 0x60, char(0x90), -0x40, -0x30, -0x20, -0x10));
    const __m256i half = _mm256_set1_epi8(15);
    // Unpacking reorders within 128 bits; in this order it gives outputs 0 .. 7, then 8 .. 15.
    const __m256i x = _mm256_permute4x64_epi64(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)), 0xd8);
    const __m256i small = _mm256_add_epi8(_mm256_and_si256(x, _mm256_set1_epi8(0x7f)), _mm256_set1_epi8(0x78));
    const __m256i first = _mm256_add_epi8(_mm256_shuffle_epi8(high, _mm256_and_si256(_mm256_srli_epi16(x, 4), half)),
                                          _mm256_shuffle_epi8(small_high, small));
    const __m256i second = _mm256_add_epi8(_mm256_slli_epi16(_mm256_and_si256(x, half), 4),
                                           _mm256_shuffle_epi8(small_low, small));
    return {_mm256_unpacklo_epi8(second, first), _mm256_unpackhi_epi8(second, first)};
}
// Element I of 8 int8 pairs, as f32. Each byte, with its sign bit flipped, goes into the middle of the mantissa
// of a float, which is then 2**15 + 128 + q.
template <int I> inline __m256 int8_numbers(const uint8_t* p) {
    const __m256i x = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    const __m256i place = _mm256_setr_epi8(-1, I, -1, -1, -1, 2 + I, -1, -1, -1, 4 + I, -1, -1, -1, 6 + I, -1, -1,
                                           -1, 8 + I, -1, -1, -1, 10 + I, -1, -1, -1, 12 + I, -1, -1, -1, 14 + I, -1, -1);
    const __m256i bits = _mm256_xor_si256(_mm256_shuffle_epi8(x, place), _mm256_set1_epi32(0x47008000));
    return _mm256_sub_ps(_mm256_castsi256_ps(bits), _mm256_set1_ps(0x1p15f + 128.f));
}
inline __m256i int8_pairs(const uint8_t* p) {
    const __m256i x = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    const __m256 even = _mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_slli_epi32(x, 16), 16));
    const __m256 odd = _mm256_cvtepi32_ps(_mm256_srai_epi32(x, 16));
    return _mm256_or_si256(_mm256_srli_epi32(_mm256_castps_si256(even), 16), _mm256_castps_si256(odd));
}
inline vi widen_int8(const uint8_t* p) { return {int8_pairs(p), int8_pairs(p + 16)}; }
// first: even columns; second: odd ones.
inline void store_columns(float* p, vf first, vf second) {
    const __m256 a[2] = {first.a, first.b}, b[2] = {second.a, second.b};
    for (int i = 0; i < 2; ++i) {
        const __m256 low = _mm256_unpacklo_ps(a[i], b[i]), high = _mm256_unpackhi_ps(a[i], b[i]);
        _mm256_storeu_ps(p + 16 * i, _mm256_permute2f128_ps(low, high, 0x20));
        _mm256_storeu_ps(p + 16 * i + 8, _mm256_permute2f128_ps(low, high, 0x31));
    }
}
// Lane i of the result is the sum of a[i], in the order of `sum`.
inline __m256 eight_sums(const vf* a) {
    __m128 four[8];
    for (int i = 0; i < 8; ++i) {
        const __m256 eight = _mm256_add_ps(a[i].a, a[i].b);
        four[i] = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    }
    __m128 all[2];
    for (int i = 0; i < 2; ++i) {
        __m128 *f = four + 4 * i, x = f[0], y = f[1], z = f[2], w = f[3];
        _MM_TRANSPOSE4_PS(x, y, z, w);
        all[i] = _mm_add_ps(_mm_add_ps(x, z), _mm_add_ps(y, w));
    }
    return _mm256_set_m128(all[1], all[0]);
}
inline vf sums(const vf* a) { return {eight_sums(a), eight_sums(a + 8)}; }

// One of the PARTS registers of a vf, for loops that keep all sums in registers.
using part = __m256;
constexpr int PARTS = 2;
inline part zero_part() { return _mm256_setzero_ps(); }
inline part splat_part(float x) { return _mm256_set1_ps(x); }
inline part load_part(const float* p, int i) { return _mm256_loadu_ps(p + 8 * i); }
inline void store_part(float* p, int i, part x) { _mm256_storeu_ps(p + 8 * i, x); }
inline part& part_of(vf& x, int i) { return i ? x.b : x.a; }
// Part i of 32 bf16: the even elements as `low` gives them, the odd ones as `high` does.
inline void halves(const uint16_t* p, int i, part& even, part& odd) {
    const __m256i w = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p) + i);
    even = _mm256_castsi256_ps(_mm256_slli_epi32(w, 16));
    odd = _mm256_castsi256_ps(_mm256_and_si256(w, _mm256_set1_epi32(int(0xffff0000u))));
}

// Used by lines.h.
inline vf whole(vi w) { return {_mm256_cvtepi32_ps(w.a), _mm256_cvtepi32_ps(w.b)}; }
inline vf of_halves(const uint8_t* p) {
    const __m128i* q = reinterpret_cast<const __m128i*>(p);
    return {_mm256_cvtph_ps(_mm_loadu_si128(q)), _mm256_cvtph_ps(_mm_loadu_si128(q + 1))};
}
inline vf of_bytes(const uint8_t* p) {
    const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return whole({_mm256_cvtepu8_epi32(x), _mm256_cvtepu8_epi32(_mm_srli_si128(x, 8))});
}
inline vf of_signed_bytes(const uint8_t* p) {
    const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return whole({_mm256_cvtepi8_epi32(x), _mm256_cvtepi8_epi32(_mm_srli_si128(x, 8))});
}

}  // namespace
