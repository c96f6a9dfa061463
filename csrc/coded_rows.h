// Rows that meet a few-bit weight in vector registers: where they lie, their sums over each cell, and, for f32
// multiply-adds, their f32 copies.
#pragma once
#include <algorithm>
#include <vector>

#include "coded_bytes.h"
#include "panels.h"
#include "pool.h"
#include "simd.h"

namespace {

// The sum of n bf16 (a multiple of 16): the same order of additions wherever they lie.
inline float sum_of(const uint32_t* row, int n) {
    vf total = zero();
    for (int k = 0; k < n; k += 16) total = add(total, widen_bf16(reinterpret_cast<const uint16_t*>(row) + k));
    return sum(total);
}

class CodedRows {
  public:
    void take(Pool& pool, const Rows& x, int rows, const NxWeight& w, bool wide) {
#if defined(NX_BYTES)
        if (by_bytes(w)) return bytes_.take(pool, x, rows, w);
#endif
        rows_ = x;
        inputs_ = coded_layout(w.kind).inputs(w.block), cells_ = w.n_in / inputs_, n_in_ = w.n_in;
        sums_.resize(std::max(sums_.size(), size_t(rows) * cells_));
        if (wide) wide_.resize(std::max(wide_.size(), size_t(rows) * n_in_ + 16));
        const auto one = [&](int i) {
            const uint32_t* row = x(i);
            for (int c = 0; c < cells_; ++c) sums_[size_t(i) * cells_ + c] = sum_of(row + c * inputs_ / 2, inputs_);
            if (!wide) return;
            float* to = wide_.data() + size_t(i) * n_in_;
            for (int k = 0; k < n_in_; k += 16)
                store(to + k, widen_bf16(reinterpret_cast<const uint16_t*>(row) + k));
        };
        pool.for_each(rows, [&](int i, int) { one(i); }, int64_t(rows) * n_in_ * 4);
    }
    int cells() const { return cells_; }
    int inputs() const { return inputs_; }
    const float* sums(int i) const { return sums_.data() + size_t(i) * cells_; }
    const uint32_t* pairs(int i) const { return rows_(i); }
    const float* wide(int i) const { return wide_.data() + size_t(i) * n_in_; }

#if defined(NX_BYTES)
    const ByteRows& bytes() const { return bytes_; }
#endif

  private:
#if defined(NX_BYTES)
    ByteRows bytes_;
#endif
    Rows rows_{};
    int inputs_ = 0, cells_ = 0, n_in_ = 0;
    std::vector<float> sums_, wide_;
};

}  // namespace
