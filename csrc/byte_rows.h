// Rows as bytes: the inputs of each cell as integers from -127 to 127, with the cell's largest absolute value
// as 127, as in llama.cpp's Q8_0 and Q8_K. Their dot products with few-bit codes are dot products of bytes
// (coded_bytes.h).
//
// The inputs are rounded to 8 bits: llama.cpp computes the same from the same files. The other ways to multiply
// few-bit weights take inputs in bf16.
#pragma once
#include <algorithm>
#include <vector>

#include "panels.h"
#include "pool.h"
#include "simd.h"

namespace {

constexpr int BY_BYTES = 4;  // NxWeight::way

#if defined(__AVX512F__) && defined(__GNUC__)
#define NX_BYTES 1
inline bool by_bytes_here() { return __builtin_cpu_supports("avx512vnni"); }
inline bool by_bytes(const NxWeight& w) { return w.way == BY_BYTES; }
#else
inline bool by_bytes_here() { return false; }
#endif

}  // namespace

#if defined(NX_BYTES)
namespace {

// The code that stands for 0 in the product. Codes of 8 bits are stored with 128 added.
inline int byte_zero(const CodedLayout& l) { return l.bits == 8 ? 128 : int(l.zero); }

// The order in which codes come out of their words (coded_bytes.h): half 0 for the first 16 inputs of a cell,
// half 1 for the next 16.
inline const int8_t* byte_order(int bits, int half) {
    static const int8_t eight[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    static const int8_t six[16] = {0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15};
    static const int8_t five[2][16] = {{0, 2, 1, 3, 6, 8, 7, 9, 12, 14, 13, 15, 4, 10, 5, 11},
                                       {2, 4, 3, 5, 8, 10, 9, 11, 0, 6, 1, 7, 12, 14, 13, 15}};
    static const int8_t four[16] = {0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15};
    return bits == 8 ? eight : bits == 6 ? six : bits == 5 ? five[half] : four;
}

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
    // words: a row's inputs, four in a word. For each cell of a row: scale; start, the integer at which its sum
    // of products starts, so that the codes' zero is subtracted; sums, the sum of the inputs.
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
            open = fma(v, zero(), open);  // NaN if an input is not finite
        }
        const float most = largest(top);
        const vf each = splat(most > 0.f ? 127.f / most : 0.f);
        __m512i total = _mm512_setzero_si512();
        const __m128i order[2] = {_mm_loadu_si128(reinterpret_cast<const __m128i*>(byte_order(l.bits, 0))),
                                  _mm_loadu_si128(reinterpret_cast<const __m128i*>(byte_order(l.bits, 1)))};
        for (int k = 0; k < inputs_; k += 16) {
            const __m512i q = _mm512_cvtps_epi32(mul(widen_bf16(x + k), each));
            total = _mm512_add_epi32(total, q);
            const __m128i bytes = _mm512_cvtsepi32_epi8(q);
            _mm_storeu_si128(reinterpret_cast<__m128i*>(to + k), _mm_shuffle_epi8(bytes, order[k / 16 % 2]));
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
