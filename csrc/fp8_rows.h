// Rows as e4m3, with a scale for each 128 inputs: the input of routed experts if --ep-dispatch-dtype is fp8.
//
// Scales are powers of two (DeepSeek's ue8m0): the smallest with which the block's largest input fits into
// e4m3, whose largest number is 448. So a rounded row is exact in bf16, rounding it again changes nothing, and
// it can be sent in half the bytes. nextn/ops/fp8_rows.py does the same in torch.
//
// In a message a row is n bytes of e4m3, then an f32 scale for each block. A block that has a NaN, or an input
// that would round to infinity, is NaN.
#pragma once
#include <algorithm>
#include <cstring>

#include "simd.h"

namespace {

constexpr int FP8_BLOCK = 128;

inline int64_t fp8_row_bytes(int64_t n) { return n + (n + FP8_BLOCK - 1) / FP8_BLOCK * 4; }

// The scale's exponent as f32 stores it. largest: the bits of the block's largest input, bf16 without the sign.
// The smallest scale is 2**-117: with it no e4m3 number is denormal in bf16.
inline uint32_t fp8_exponent(uint32_t largest) {
    constexpr uint32_t LEAST = 127 - 117, MOST_FRACTION = 0x60;  // 448 is 1.75 * 2**8
    const uint32_t exponent = (largest >> 7) + ((largest & 0x7f) > MOST_FRACTION);
    return std::max(exponent, LEAST + 8) - 8;
}

// a or b without a branch, so that compilers can make vectors of loops over it.
inline uint32_t either(bool first, uint32_t a, uint32_t b) {
    const uint32_t mask = 0u - uint32_t(first);
    return (a & mask) | (b & ~mask);
}

// e4m3 of a number up to 448: the nearest, ties to even.
inline uint8_t to_e4m3(float x) {
    const uint32_t bits = float_bits(x), size = bits & 0x7fffffff;
    const uint32_t normal = ((size + 0x7ffff + (size >> 20 & 1)) >> 20) - (120 << 3);
    // Below 2**-6, steps are 2**-9, the weight of the last bit of 16384.
    const uint32_t small = float_bits(bits_float(size) + 16384.f) - 0x46800000;
    return uint8_t(either(size < 0x3c800000, small, normal) | (bits >> 24 & 0x80));
}
inline float of_e4m3(uint8_t code) {
    const uint32_t size = code & 0x7f;
    const uint32_t normal = (size << 20) + (120u << 23), small = float_bits(float(int(size)) * 0x1p-9f);
    return bits_float(either(size < 8, small, normal) | uint32_t(code & 0x80) << 24);
}

// Encodes a block of n inputs, bf16 -> codes. Returns its scale.
inline float fp8_encode_block(const uint16_t* x, int n, uint8_t* codes) {
    uint16_t largest = 0;
    for (int i = 0; i < n; ++i) largest = std::max(largest, uint16_t(x[i] & 0x7fff));
    if (largest >= 0x7f78) {  // from this value on, the nearest is 2**128
        memset(codes, 0x7f, size_t(n));
        return bits_float(0x7fc00000);
    }
    const uint32_t exponent = fp8_exponent(largest);
    const float inverse = bits_float((254 - exponent) << 23);
    for (int i = 0; i < n; ++i) codes[i] = to_e4m3(bf16_float(x[i]) * inverse);
    return bits_float(exponent << 23);
}
inline void fp8_decode_block(const uint8_t* codes, int n, float scale, uint16_t* y) {
    for (int i = 0; i < n; ++i) y[i] = uint16_t(float_bits(of_e4m3(codes[i]) * scale) >> 16);  // exact
}

// Calls each(first input, number of inputs) for each block.
template <class Each> inline void fp8_blocks(int64_t n, const Each& each) {
    for (int64_t at = 0; at < n; at += FP8_BLOCK) each(at, int(std::min<int64_t>(FP8_BLOCK, n - at)));
}

// to [fp8_row_bytes(n)] <- a row of n inputs, bf16.
inline void fp8_encode(const uint16_t* x, int64_t n, uint8_t* to) {
    uint8_t* scale = to + n;
    fp8_blocks(n, [&](int64_t at, int size) {
        const float found = fp8_encode_block(x + at, size, to + at);
        memcpy(scale, &found, 4);
        scale += 4;
    });
}
// Decodes a row. y is the same as from `fp8_round`.
inline void fp8_decode(const uint8_t* from, int64_t n, uint16_t* y) {
    const uint8_t* scale = from + n;
    fp8_blocks(n, [&](int64_t at, int size) {
        float found;
        memcpy(&found, scale, 4);
        scale += 4;
        fp8_decode_block(from + at, size, found, y + at);
    });
}
// y [n] <- x rounded to e4m3. y may be x.
inline void fp8_round(const uint16_t* x, int64_t n, uint16_t* y) {
    fp8_blocks(n, [&](int64_t at, int size) {
        uint8_t codes[FP8_BLOCK];
        const float scale = fp8_encode_block(x + at, size, codes);
        fp8_decode_block(codes, size, scale, y + at);
    });
}

}  // namespace
