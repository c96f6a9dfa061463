// Does multiply-adds and nothing else: the upper limit of arithmetic, as read.h measures that of reading.
#pragma once
#include <atomic>

#include "linear.h"
#include "pool.h"
#include "simd.h"

namespace {

// Products of bf16 tiles, dot products of bf16 pairs, f32 multiply-adds, dot products of bytes. A library has
// some of them.
enum Arithmetic { TILE_PRODUCTS, PAIR_PRODUCTS, FLOAT_PRODUCTS, BYTE_PRODUCTS };

// One register of f32; a vf can be several.
#if defined(__AVX512F__)
using Lanes = vf;
inline Lanes multiply_add(Lanes acc, Lanes a, Lanes b) { return fma(acc, a, b); }
#elif defined(__AVX2__) && defined(__FMA__)
using Lanes = __m256;
inline Lanes multiply_add(Lanes acc, Lanes a, Lanes b) { return _mm256_fmadd_ps(acc, a, b); }
#else
typedef float Lanes __attribute__((vector_size(16)));
inline Lanes multiply_add(Lanes acc, Lanes a, Lanes b) { return acc * a + b; }
#endif
constexpr int FLOATS = sizeof(Lanes) / sizeof(float);
constexpr int SUMS = 12;     // independent sums, so that none waits for itself
constexpr int STEPS = 4096;  // steps in a task

// The value in all lanes. Volatile, so that the compiler knows nothing about it.
inline Lanes same(float value) {
    volatile float unknown = value;
    float lanes[FLOATS];
    for (float& lane : lanes) lane = unknown;
    Lanes r;
    memcpy(&r, lanes, sizeof r);
    return r;
}

// Takes every sum through STEPS steps. The result is returned so that the compiler cannot leave out anything.
template <class Step> inline float sums_of(const Step& step) {
    Lanes acc[SUMS];
    for (int i = 0; i < SUMS; ++i) acc[i] = same(0.25f * float(i));
    for (int n = 0; n < STEPS; ++n) {
        _Pragma("GCC unroll 12") for (int i = 0; i < SUMS; ++i) acc[i] = step(acc[i]);
    }
    float lanes[SUMS * FLOATS], all = 0.f;
    memcpy(lanes, acc, sizeof lanes);
    for (float lane : lanes) all += lane;
    return all;
}

inline float float_products() {
    const Lanes a = same(0.5f), b = same(1.5f);
    return sums_of([&](Lanes acc) { return multiply_add(acc, a, b); });
}

#if defined(__AVX512BF16__)
inline float pair_products() {
    volatile uint32_t factors = 0x3e003d00u, others = 0x3c803d80u;
    const vi a = splat_word(factors), b = splat_word(others);
    return sums_of([&](Lanes acc) { return dot2(acc, a, b); });
}
#endif

#if defined(NX_BYTES)
// As products of codes below 64, without what a cell's sum takes when it is complete.
inline float byte_products() {
    volatile uint32_t factors = 0x01020304u, others = 0x02010201u;
    const uint32_t factor = factors, other = others;
    ByteSum a, b, acc[SUMS];
    a = splat_sum(factor), b = splat_sum(other);
    for (int i = 0; i < SUMS; ++i) acc[i] = splat_sum(uint32_t(i));
    for (int n = 0; n < STEPS; ++n) {
        _Pragma("GCC unroll 12") for (int i = 0; i < SUMS; ++i) {
            asm("" : "+x"(b));  // otherwise the compiler multiplies once
            dot4<STARTED>(acc[i], a, b);
        }
    }
    uint32_t words[SUMS * sizeof(ByteSum) / 4], all = 0;
    memcpy(words, acc, sizeof words);
    for (uint32_t word : words) all |= word;
    return float(all);
}
#endif

#if defined(__AMX_BF16__)
// Four sums of 16 by 16 elements, two tiles of rows, two of weights, as in a product of many rows.
inline float tile_products() {
    alignas(64) uint32_t tile[256];
    alignas(64) float out[256];
    for (uint32_t& word : tile) word = 0x3c003b80u;
    configure(2 * TILE_ROWS);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    _tile_loadd(4, tile, 64);
    _tile_loadd(5, tile, 64);
    _tile_loadd(6, tile, 64);
    _tile_loadd(7, tile, 64);
    for (int n = 0; n < STEPS; ++n) {
        compiler_fence();
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    float all = 0.f;
    _tile_stored(0, out, 64);
    all += out[0];
    _tile_stored(1, out, 64);
    all += out[0];
    _tile_stored(2, out, 64);
    all += out[0];
    _tile_stored(3, out, 64);
    return all + out[0];
}
#endif

// Does `tasks` tasks of one kind of arithmetic on all threads. Returns the number of operations, 2 for a
// multiply-add; 0 if the library does not have the instruction.
inline int64_t arithmetic(Pool& pool, int which, int tasks) {
    std::atomic<int64_t> found{0};
    pool.for_each(tasks, [&](int, int) {
        float result = 0.f;
        int64_t operations = 0;
        if (which == FLOAT_PRODUCTS) {
            result = float_products();
            operations = int64_t(STEPS) * SUMS * FLOATS * 2;
        }
#if defined(__AVX512BF16__)
        if (which == PAIR_PRODUCTS) {
            result = pair_products();
            operations = int64_t(STEPS) * SUMS * FLOATS * 4;
        }
#endif
#if defined(NX_BYTES)
        if (which == BYTE_PRODUCTS && by_bytes_here()) {
            result = byte_products();
            operations = int64_t(STEPS) * SUMS * int64_t(sizeof(ByteSum)) * 2;
        }
#endif
#if defined(__AMX_BF16__)
        if (which == TILE_PRODUCTS) {
            result = tile_products();
            operations = int64_t(STEPS) * 4 * 16 * 16 * 32 * 2;
        }
#endif
        if (result == result) found.fetch_add(operations, std::memory_order_relaxed);  // always true: it is never NaN
    });
    return found.load();
}

}  // namespace
