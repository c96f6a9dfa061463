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

// NX_BYTES: this level has dot products of bytes. With AVX-512, the CPU must have VNNI too.
#if defined(__AVX512F__) && defined(__GNUC__)
#define NX_BYTES 1
inline bool by_bytes_here() { return __builtin_cpu_supports("avx512vnni"); }
#elif defined(__AVX2__) && defined(__FMA__) && !defined(__AVX512F__)
#define NX_BYTES 1
inline bool by_bytes_here() { return true; }
#else
inline bool by_bytes_here() { return false; }
#endif

}  // namespace

#if defined(NX_BYTES)
namespace {

inline bool by_bytes(const NxWeight& w) { return w.way == BY_BYTES; }

// A cell whose largest input is below this counts as zeros: 127 / it would not be finite.
constexpr float LEAST_INPUT = 1e-36f;

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

#if defined(__AVX512F__)
inline vf size_of(vf x) { return _mm512_abs_ps(x); }
inline vi nearest(vf x) { return _mm512_cvtps_epi32(x); }
inline vi add_words(vi x, vi y) { return _mm512_add_epi32(x, y); }
inline int32_t sum_words(vi x) { return _mm512_reduce_add_epi32(x); }
inline __m128i saturated_bytes(vi x) { return _mm512_cvtsepi32_epi8(x); }

// The word at which the sum of products of a cell starts, so that the codes' zero is subtracted. whole: the
// sum of the inputs.
inline uint32_t start_word(const CodedLayout& l, const int8_t*, int, int32_t whole) {
    return uint32_t(-byte_zero(l)) * uint32_t(whole);
}
#else
inline vf size_of(vf x) {
    const __m256 sign = _mm256_set1_ps(-0.f);
    return {_mm256_andnot_ps(sign, x.a), _mm256_andnot_ps(sign, x.b)};
}
inline vi nearest(vf x) { return {_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b)}; }
inline vi add_words(vi x, vi y) { return x + y; }
inline int32_t sum_words(vi x) {
    const __m256i eight = _mm256_add_epi32(x.a, x.b);
    const __m128i four = _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
    const __m128i two = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32(two, 0xb1)));
}
inline __m128i saturated_bytes(vi x) {
    const __m256i halves = _mm256_permute4x64_epi64(_mm256_packs_epi32(x.a, x.b), 0xd8);
    return _mm_packs_epi16(_mm256_castsi256_si128(halves), _mm256_extracti128_si256(halves, 1));
}

// What the codes of a cell are reduced by, so that its sums of products fit into 16 bits (dot4 in byte_products.h).
inline int byte_middle(const CodedLayout& l) { return l.bits == 5 ? 16 : l.bits == 8 ? 0 : int(l.zero); }
// The two halves of a word at which the two sums of a cell start: one of the first two bytes of all words, the
// other of the last two. bytes: the inputs.
inline uint32_t start_word(const CodedLayout& l, const int8_t* bytes, int inputs, int32_t) {
    const __m128i ones = _mm_set1_epi8(1);
    __m128i pairs = _mm_setzero_si128();
    for (int k = 0; k < inputs; k += 16)
        pairs = _mm_add_epi16(pairs, _mm_maddubs_epi16(ones, _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes + k))));
    pairs = _mm_add_epi16(pairs, _mm_shuffle_epi32(pairs, 0x4e));
    pairs = _mm_add_epi16(pairs, _mm_shuffle_epi32(pairs, 0xb1));
    return uint32_t(_mm_cvtsi128_si32(_mm_mullo_epi16(pairs, _mm_set1_epi16(int16_t(-byte_middle(l))))));
}
#endif

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
    // words: a row's inputs, four in a word. For each cell of a row: scale; start, see start_word; sums, the sum
    // of the inputs.
    const int32_t* words(int i) const { return reinterpret_cast<const int32_t*>(bytes_.data() + size_t(i) * n_in_); }
    const float* scale(int i) const { return scales_.data() + size_t(i) * cells_ * 3; }
    const int32_t* start(int i) const { return reinterpret_cast<const int32_t*>(scale(i) + cells_); }
    const float* sums(int i) const { return scale(i) + 2 * cells_; }

  private:
    void cell(const uint16_t* x, const CodedLayout& l, int8_t* to, float* scale, float* start, float* sum) const {
        vf top = zero(), open = zero();
        for (int k = 0; k < inputs_; k += 16) {
            const vf v = widen_bf16(x + k);
            top = max(top, size_of(v));
            open = fma(v, zero(), open);  // NaN if an input is not finite
        }
        const float most = largest(top);
        const vf each = splat(most > LEAST_INPUT ? 127.f / most : 0.f);
        vi total = splat_word(0);
        const __m128i order[2] = {_mm_loadu_si128(reinterpret_cast<const __m128i*>(byte_order(l.bits, 0))),
                                  _mm_loadu_si128(reinterpret_cast<const __m128i*>(byte_order(l.bits, 1)))};
        for (int k = 0; k < inputs_; k += 16) {
            const vi q = nearest(mul(widen_bf16(x + k), each));
            total = add_words(total, q);
            const __m128i bytes = _mm_shuffle_epi8(saturated_bytes(q), order[k / 16 % 2]);
            _mm_storeu_si128(reinterpret_cast<__m128i*>(to + k), bytes);
        }
        const int32_t whole = sum_words(total);
        const uint32_t begin = start_word(l, to, inputs_, whole);
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
