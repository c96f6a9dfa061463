// Rows in the form that products in vector registers read: as they are, or widened to f32 for f32
// multiply-adds. Also their sums over each cell of a few-bit weight.
#pragma once
#include <algorithm>
#include <vector>

#include "byte_rows.h"
#include "panels.h"
#include "pool.h"
#include "simd.h"

namespace {

// The sum of n bf16 (a multiple of 16), always in the same order of additions.
inline float sum_of(const uint32_t* row, int n) {
    vf total = zero();
    for (int k = 0; k < n; k += 16) total = add(total, widen_bf16(reinterpret_cast<const uint16_t*>(row) + k));
    return sum(total);
}

// Widens n pairs of bf16 to f32.
inline void widen_words(const uint32_t* from, int n, float* to) {
    int i = 0;
    for (; i + 8 <= n; i += 8) store(to + 2 * i, widen_bf16(reinterpret_cast<const uint16_t*>(from + i)));
    for (; i < n; ++i) to[2 * i] = bits_float(from[i] << 16), to[2 * i + 1] = bits_float(from[i] & 0xffff0000u);
}

class VectorRows {
  public:
    // pairs: the product reads pairs of bf16, not f32.
    void take(Pool& pool, const Rows& x, int rows, const NxWeight& w, bool pairs) {
#if defined(NX_BYTES)
        if (by_bytes(w)) return bytes_.take(pool, x, rows, w);
#endif
        rows_ = x;
        const bool coded = is_coded(w.kind), wide = w.kind != F32 && !pairs;
        is_wide_ = wide;
        if (!coded && !wide) return;
        const int inputs = coded ? coded_layout(w.kind).inputs(w.block) : 0, words = w.n_in / 2;
        cells_ = coded ? w.n_in / inputs : 0;
        // An odd number of cache lines, so that rows do not fall into the same sets of the first-level cache.
        stride_ = (int64_t(w.n_in) + 15) / 16 * 16 | 16;
        if (coded) sums_.resize(std::max(sums_.size(), size_t(rows) * cells_));
        if (wide) wide_.resize(std::max(wide_.size(), size_t(rows) * stride_));
        const auto one = [&](int i) {
            const uint32_t* row = x(i);
            for (int c = 0; c < cells_; ++c) sums_[size_t(i) * cells_ + c] = sum_of(row + c * inputs / 2, inputs);
            if (wide) widen_words(row, words, wide_.data() + size_t(i) * stride_);
        };
        pool.for_each(rows, [&](int i, int) { one(i); }, int64_t(rows) * w.n_in * 4);
    }
    const uint32_t* words(int i) const { return rows_(i); }
    // f32 rows are in this form already.
    const float* wide(int i) const {
        return is_wide_ ? wide_.data() + size_t(i) * stride_ : reinterpret_cast<const float*>(rows_(i));
    }
    const float* sums(int i) const { return sums_.data() + size_t(i) * cells_; }
#if defined(NX_BYTES)
    const ByteRows& bytes() const { return bytes_; }
#endif

  private:
#if defined(NX_BYTES)
    ByteRows bytes_;
#endif
    Rows rows_{};
    bool is_wide_ = false;
    int cells_ = 0;
    int64_t stride_ = 0;
    std::vector<float> sums_, wide_;
};

}  // namespace
