// Row-wise operations between the products: residual addition, RMS norm, rotary embedding. One thread does one
// row.
#pragma once
#include <cstring>

#include "simd.h"

namespace {

inline int64_t wide(int64_t n) { return (n + 31) / 32 * 32; }

inline void copy_padded(const float* from, int n, float* to) {
    memcpy(to, from, size_t(n) * 4);
    for (int64_t i = n; i < wide(n); ++i) to[i] = 0.f;
}

// 1 / sqrt(mean(x^2) + eps) of n values. x is padded with zeros to a multiple of 16.
inline float inverse_rms(const float* x, int n, float eps) {
    vf a = zero(), b = zero();
    int c = 0;
    for (; c + 32 <= n; c += 32) {
        a = fma(load(x + c), load(x + c), a);
        b = fma(load(x + c + 16), load(x + c + 16), b);
    }
    for (; c < n; c += 16) a = fma(load(x + c), load(x + c), a);
    return 1.f / std::sqrt(sum(add(a, b)) / float(n) + eps);
}

// y <- RMS norm of x. weight: f32. x and weight are padded with zeros to a multiple of 16.
inline void norm_bf16(const float* x, const float* weight, int n, float eps, uint16_t* y) {
    const vf scale = splat(inverse_rms(x, n, eps));
    for (int c = 0; c < n; c += 16) store_bf16(y + c, mul(mul(load(x + c), scale), load(weight + c)));
}

inline void norm_f32(const float* x, const float* weight, int n, float eps, float* y) {
    const vf scale = splat(inverse_rms(x, n, eps));
    for (int c = 0; c < n; c += 16) store(y + c, mul(mul(load(x + c), scale), load(weight + c)));
}

// x += y; both are padded with zeros to a multiple of 16.
inline void add_to(float* x, const float* y, int n) {
    for (int c = 0; c < n; c += 16) store(x + c, add(load(x + c), load(y + c)));
}

// y <- x with adjacent pairs rotated, times `scale`. cosine, sine: of the angles, n / 2 each.
inline void rotate(const float* x, const float* cosine, const float* sine, int n, float scale, uint16_t* y) {
    for (int i = 0; i < n / 2; ++i) {
        const float a = x[2 * i], b = x[2 * i + 1], c = cosine[i], s = sine[i];
        const float real = a * c - b * s, imaginary = a * s + b * c;
        y[2 * i] = float_bf16(real * scale);
        y[2 * i + 1] = float_bf16(imaginary * scale);
    }
}

}  // namespace
