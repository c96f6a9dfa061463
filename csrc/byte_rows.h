// Rows as bytes: each cell of a row divided by its largest value, in whole numbers from -127 to 127, as llama.cpp has
// them (its Q8_0 and Q8_K). They meet few-bit codes in dot products of bytes (coded_bytes.h).
#pragma once
#if defined(__AVX512F__)
#include <algorithm>
#include <vector>

#include "panels.h"
#include "pool.h"
#include "simd.h"

namespace {

// What stands for 0 among the codes as they are multiplied; those of 8 bits are stored with 128 added.
inline int byte_zero(const CodedLayout& l) { return l.bits == 8 ? 128 : int(l.zero); }

inline float lanes(vf x) { return sum(x); }

class ByteRows {
  public:
    void take(Pool& pool, const Rows& x, int rows, const NxWeight& w) {
        const CodedLayout& l = coded_layout(w.kind);
        inputs_ = l.inputs(w.block), cells_ = w.n_in / inputs_, n_in_ = w.n_in;
        bytes_.resize(std::max(bytes_.size(), size_t(rows) * n_in_));
        scales_.resize(std::max(scales_.size(), size_t(rows) * cells_ * 3));
        const auto one = [&](int i) {
            const auto* row = reinterpret_cast<const uint16_t*>(x(i));
            float* scale = scales_.data() + size_t(i) * cells_ * 3;
            for (int c = 0; c < cells_; ++c)
                cell(row + c * inputs_, l, bytes_.data() + size_t(i) * n_in_ + c * inputs_, scale + c,
                     scale + cells_ + c, scale + 2 * cells_ + c);
        };
        pool.for_each(rows, [&](int i, int) { one(i); }, int64_t(rows) * n_in_ * 4);
    }
    int inputs() const { return inputs_; }
    int cells() const { return cells_; }
    // Of a row: its words of four bytes, and of each of its cells the scale, what a sum of products starts at (the
    // codes' zero comes off there; whole numbers), and the sum of the inputs.
    const int32_t* words(int i) const { return reinterpret_cast<const int32_t*>(bytes_.data() + size_t(i) * n_in_); }
    const float* scale(int i) const { return scales_.data() + size_t(i) * cells_ * 3; }
    const int32_t* start(int i) const { return reinterpret_cast<const int32_t*>(scale(i) + cells_); }
    const float* sums(int i) const { return scale(i) + 2 * cells_; }

  private:
    void cell(const uint16_t* x, const CodedLayout& l, int8_t* to, float* scale, float* start, float* sum) const {
        vf top = zero(), open = zero();
        for (int k = 0; k < inputs_; k += 16) {
            const vf v = widen_bf16(x + k);
            top = max(top, _mm512_abs_ps(v));
            open = fma(v, zero(), open);  // NaN where an input is not finite
        }
        const float most = largest(top);
        const vf each = splat(most > 0.f ? 127.f / most : 0.f);
        __m512i total = _mm512_setzero_si512();
        // Codes of less than 8 bits come in this order out of their words.
        const __m128i order = l.bits == 8
            ? _mm_setr_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)
            : _mm_setr_epi8(0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15);
        for (int k = 0; k < inputs_; k += 16) {
            const __m512i q = _mm512_cvtps_epi32(mul(widen_bf16(x + k), each));
            total = _mm512_add_epi32(total, q);
            const __m128i bytes = _mm512_cvtsepi32_epi8(q);
            _mm_storeu_si128(reinterpret_cast<__m128i*>(to + k), _mm_shuffle_epi8(bytes, order));
        }
        const int32_t whole = _mm512_reduce_add_epi32(total), begin = -byte_zero(l) * whole;
        *scale = most / 127.f + lanes(open);
        memcpy(start, &begin, 4);
        *sum = *scale * float(whole);
    }

    int inputs_ = 0, cells_ = 0, n_in_ = 0;
    std::vector<int8_t> bytes_;
    std::vector<float> scales_;
};

}  // namespace
#endif
