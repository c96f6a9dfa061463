// Sixteen f32 lanes as four of the compiler's vectors of 16 bytes: the functions that simd.h promises, on any
// machine. Vectors of 64 bytes would go through memory on machines with shorter registers.
#pragma once

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "of a pair, the even element is the low half");

namespace {

typedef float f4 __attribute__((vector_size(16)));
typedef uint32_t u4 __attribute__((vector_size(16)));
typedef int32_t i4 __attribute__((vector_size(16)));
struct vf { f4 q[4]; };
struct vi { u4 q[4]; };

// Makes a vector from of(0) .. of(3), its quarters.
template <class To, class Of> NX_INLINE inline To each(const Of& of) { return {{of(0), of(1), of(2), of(3)}}; }
#define NX_EACH(TO, VALUE) each<TO>([&](int i) NX_INLINE { return VALUE; })

inline vf splat(float x) { const f4 r = {x, x, x, x}; return {{r, r, r, r}}; }
inline vf zero() { return splat(0.f); }
template <class Q> inline Q quarter(const void* p, int i) {
    Q r;
    memcpy(&r, static_cast<const char*>(p) + 16 * i, 16);
    return r;
}
inline vf load(const float* p) { return NX_EACH(vf, quarter<f4>(p, i)); }
inline void store(float* p, vf x) { for (int i = 0; i < 4; ++i) memcpy(p + 4 * i, &x.q[i], 16); }
inline vf add(vf x, vf y) { return NX_EACH(vf, x.q[i] + y.q[i]); }
inline vf sub(vf x, vf y) { return NX_EACH(vf, x.q[i] - y.q[i]); }
inline vf mul(vf x, vf y) { return NX_EACH(vf, x.q[i] * y.q[i]); }
inline vf div(vf x, vf y) { return NX_EACH(vf, x.q[i] / y.q[i]); }
inline f4 larger(f4 x, f4 y) { return x > y ? x : y; }
inline vf max(vf x, vf y) { return NX_EACH(vf, larger(x.q[i], y.q[i])); }
inline vf min(vf x, vf y) { return NX_EACH(vf, x.q[i] < y.q[i] ? x.q[i] : y.q[i]); }
inline vf fma(vf x, vf y, vf z) { return NX_EACH(vf, x.q[i] * y.q[i] + z.q[i]); }
inline void add_product(vf& acc, vf x, vf y) { acc = fma(x, y, acc); }
inline vf as_float(vi w) { return NX_EACH(vf, (f4)w.q[i]); }
inline vi as_words(vf x) { return NX_EACH(vi, (u4)x.q[i]); }
// For numbers below 2**22. Floats above 2**23 have no fraction bits, so adding a number of that size rounds.
inline vf round_even(vf x) { const vf high = splat(0x1.8p23f); return sub(add(x, high), high); }
inline vi words(const void* p) { return NX_EACH(vi, quarter<u4>(p, i)); }
inline vi splat_word(uint32_t w) { const u4 r = {w, w, w, w}; return {{r, r, r, r}}; }
inline vi operator+(vi x, vi y) { return NX_EACH(vi, x.q[i] + y.q[i]); }
inline vi& operator+=(vi& x, vi y) { return x = x + y; }
inline vi operator&(vi x, vi y) { return NX_EACH(vi, x.q[i] & y.q[i]); }
inline vi operator|(vi x, vi y) { return NX_EACH(vi, x.q[i] | y.q[i]); }
inline vi operator^(vi x, vi y) { return NX_EACH(vi, x.q[i] ^ y.q[i]); }
inline vi operator<<(vi x, int n) { return NX_EACH(vi, x.q[i] << n); }
inline vi operator>>(vi x, int n) { return NX_EACH(vi, x.q[i] >> n); }
inline vf whole(vi w) { return NX_EACH(vf, __builtin_convertvector((i4)w.q[i], f4)); }
inline vf pow2(vf n) {
    const vi whole = NX_EACH(vi, (u4)__builtin_convertvector(n.q[i], i4));
    return as_float((whole + splat_word(127)) << 23);
}
inline vf low(vi w) { return as_float(w << 16); }
inline vf high(vi w) { return as_float(w & splat_word(0xffff0000u)); }
inline vf dot2(vf acc, vi x, vi y) { return fma(high(x), high(y), fma(low(x), low(y), acc)); }
inline vf unless_below(vf x, float limit, vf e) {
    const f4 least = {limit, limit, limit, limit};
    return NX_EACH(vf, x.q[i] < least ? f4{} : e.q[i]);
}

// Sixteen numbers of type T as words, with sign extension if T is signed.
template <class T> inline vi lanes_of(const void* p) {
    typedef T narrow __attribute__((vector_size(4 * sizeof(T))));
    narrow x[4];
    memcpy(x, p, sizeof(x));
    return NX_EACH(vi, (u4)__builtin_convertvector(x[i], i4));
}
inline vi half_words(const void* p) { return lanes_of<uint16_t>(p); }
inline vf widen_bf16(const uint16_t* p) { return as_float(half_words(p) << 16); }
inline void store_bf16(uint16_t* p, vf x) {  // float_bf16 of each
    typedef uint16_t h4 __attribute__((vector_size(8)));
    const vi u = as_words(x), odd = (u >> 16) & splat_word(1), near = u + splat_word(0x7fff) + odd;
    const vi quiet = u | splat_word(0x400000);
    for (int i = 0; i < 4; ++i) {
        const u4 found = (x.q[i] == x.q[i] ? near.q[i] : quiet.q[i]) >> 16;
        const h4 half = __builtin_convertvector(found, h4);
        memcpy(p + 4 * i, &half, 8);
    }
}
inline f4 four_sums(vf x) { return (x.q[0] + x.q[2]) + (x.q[1] + x.q[3]); }
inline float sum(vf x) {
    const f4 four = four_sums(x);
    return (four[0] + four[2]) + (four[1] + four[3]);
}
inline float largest(vf x) {
    const f4 four = larger(larger(x.q[0], x.q[1]), larger(x.q[2], x.q[3]));
    const float a = four[0] > four[1] ? four[0] : four[1], b = four[2] > four[3] ? four[2] : four[3];
    return a > b ? a : b;
}
// Lane i of the result is the sum of a[i], in the order of `sum`.
inline vf sums(const vf* a) {
    return each<vf>([&](int i) NX_INLINE {
        const f4 x = four_sums(a[4 * i]), y = four_sums(a[4 * i + 1]);
        const f4 z = four_sums(a[4 * i + 2]), w = four_sums(a[4 * i + 3]);
        const f4 c0 = {x[0], y[0], z[0], w[0]}, c1 = {x[1], y[1], z[1], w[1]};
        const f4 c2 = {x[2], y[2], z[2], w[2]}, c3 = {x[3], y[3], z[3], w[3]};
        return (c0 + c2) + (c1 + c3);
    });
}
// The e4m3 number in the low byte of a word, as bf16. A magnitude code below 8 counts steps of 2**-9; otherwise
// only the exponent's bias changes.
inline vi e4m3_bf16(vi x) {
    const vi size = x & splat_word(0x7f), normal = (size << 4) + splat_word(120 << 7);
    const vi small = as_words(mul(whole(size), splat(0x1p-9f))) >> 16;
    return NX_EACH(vi, size.q[i] < 8 ? small.q[i] : normal.q[i]) | (x & splat_word(0x80)) << 8;
}
inline vi widen_e4m3(const uint8_t* p) {
    const vi pairs = half_words(p);
    return e4m3_bf16(pairs) | e4m3_bf16(pairs >> 8) << 16;
}
inline vi widen_int8(const uint8_t* p) {
    const vi pairs = half_words(p);
    const vf even = whole(NX_EACH(vi, (u4)((i4)(pairs.q[i] << 24) >> 24)));
    const vf odd = whole(NX_EACH(vi, (u4)((i4)(pairs.q[i] << 16) >> 24)));
    return as_words(even) >> 16 | as_words(odd);
}
// first: even columns; second: odd ones.
inline void store_columns(float* p, vf first, vf second) {
    for (int i = 0; i < 4; ++i) {
        const f4 x = first.q[i], y = second.q[i], low = {x[0], y[0], x[1], y[1]}, high = {x[2], y[2], x[3], y[3]};
        memcpy(p + 8 * i, &low, 16);
        memcpy(p + 8 * i + 4, &high, 16);
    }
}

// One of the PARTS registers of a vf, for loops that keep all sums in registers.
using part = f4;
constexpr int PARTS = 4;
inline part zero_part() { return part{}; }
inline part splat_part(float x) { return part{x, x, x, x}; }
inline part load_part(const float* p, int i) { return quarter<f4>(p, i); }
inline void store_part(float* p, int i, part x) { memcpy(p + 4 * i, &x, 16); }
inline part& part_of(vf& x, int i) { return x.q[i]; }
inline void add_product(part& acc, part x, part y) { acc = x * y + acc; }
// Part i of 32 bf16: the even elements as `low` gives them, the odd ones as `high` does.
inline void halves(const uint16_t* p, int i, part& even, part& odd) {
    const u4 w = quarter<u4>(p, i);
    even = (f4)(w << 16);
    odd = (f4)(w & 0xffff0000u);
}

// Used by lines.h.
inline vf of_halves(const uint8_t* p) {
    const vi h = half_words(p), size = h & splat_word(0x7fff);
    const vi open = NX_EACH(vi, (u4)(size.q[i] >= 0x7c00u) & 0x7f800000u);  // infinite or NaN
    const vf value = mul(as_float(size << 13), splat(0x1p112f));
    return as_float(as_words(value) | open | (h & splat_word(0x8000)) << 16);
}
inline vf of_bytes(const uint8_t* p) { return whole(lanes_of<uint8_t>(p)); }
inline vf of_signed_bytes(const uint8_t* p) { return whole(lanes_of<int8_t>(p)); }

}  // namespace
