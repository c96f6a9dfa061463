// Reads the lines of a panel as the numbers that rows are multiplied by: pairs of bf16, or f32.
//
// A line has a word of 32 bits for each of 16 outputs (16 bits in e4m3 and int8), which holds some inputs. A
// few-bit code q of b bits is put into the upper mantissa of a number with exponent b: this is the number 2**b
// + q, exactly, and takes a shift, a mask and an or. The excess, 2**b plus the code of zero, is subtracted per
// cell: the cell's sum starts at -(2**b + zero) times the sum of the row's inputs in the cell.
#pragma once
#include <utility>

#include "panels.h"
#include "simd.h"

namespace {

#if defined(__AVX512F__)
inline vi shifted(vi w, int by) {
    return by >= 0 ? _mm512_slli_epi32(w, unsigned(by)) : _mm512_srli_epi32(w, unsigned(-by));
}
inline vi picked(vi w, uint32_t mask, vi beside) {  // w & mask | beside
    return _mm512_ternarylogic_epi32(w, splat_word(mask), beside, 0xea);
}
inline vi flipped(vi w, uint32_t mask, uint32_t with) {  // w & mask ^ with
    return _mm512_ternarylogic_epi32(w, splat_word(mask), splat_word(with), 0x6a);
}
inline vi both(vi a, vi b) { return _mm512_or_si512(a, b); }
inline vi word_bits(vf x) { return _mm512_castps_si512(x); }
inline void store_words(uint8_t* p, vi w) { _mm512_store_si512(p, w); }
inline vi half_words(const uint8_t* p) { return _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p)); }
inline vf of_halves(const uint8_t* p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p)); }
inline vf of_bytes(const uint8_t* p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)p)));
}
inline vf of_signed_bytes(const uint8_t* p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p)));
}
#else
inline vi shifted(vi w, int by) { return by >= 0 ? w << by : w >> -by; }
inline vi picked(vi w, uint32_t mask, vi beside) { return (w & splat_word(mask)) | beside; }
inline vi flipped(vi w, uint32_t mask, uint32_t with) { return (w & splat_word(mask)) ^ splat_word(with); }
inline vi both(vi a, vi b) { return a | b; }
inline vi word_bits(vf x) { return as_words(x); }
#if !defined(__AVX2__)
inline void store_words(uint8_t* p, vi w) { memcpy(p, &w, 64); }
#endif
#endif

// Element I of 16 int8 pairs.
#if defined(__AVX2__) && !defined(__AVX512F__)
template <int I> inline vf int8_singles(const uint8_t* p) { return {int8_numbers<I>(p), int8_numbers<I>(p + 16)}; }
#else
template <int I> inline vf int8_singles(const uint8_t* p) {
    const vi x = flipped(shifted(half_words(p), I ? 7 : 15), 255u << 15, 0x43800000u | 128u << 15);
    return sub(as_float(x), splat(384.f));  // x is 256 + 128 + q
}
#endif

// number<Pairs, I>: number I (with Pairs: pair I) of the `inputs` of one vector of outputs. Its first of
// `lines` lines is at w, each next one `step` bytes further. get(w): for kinds with one pair in a line.
struct F32Line {
    static constexpr bool widens_cheaply = true;
    static constexpr int inputs = 1, lines = 1, bytes = 64;
    template <bool, int> static vi number(const uint8_t* w, int) { return words(w); }
};
template <class Pair> struct PairLine {
    static constexpr int inputs = 2, lines = 1;
    template <bool Pairs, int I> static vi number(const uint8_t* w, int) {
        const vi pair = Pair::get(w);
        return Pairs ? pair : word_bits(I ? high(pair) : low(pair));
    }
};
struct Bf16Line : PairLine<Bf16Line> {
    static constexpr bool widens_cheaply = true;
    static constexpr int bytes = 64;
    static vi get(const uint8_t* w) { return words(w); }
};
struct E4m3Line : PairLine<E4m3Line> {
    static constexpr bool widens_cheaply = false;
    static constexpr int bytes = 32;
    static vi get(const uint8_t* w) { return widen_e4m3(w); }
};
struct Int8Line {
    static constexpr bool widens_cheaply = false;
    static constexpr int inputs = 2, lines = 1, bytes = 32;
    static vi get(const uint8_t* w) { return widen_int8(w); }
    template <bool Pairs, int I> static vi number(const uint8_t* w, int) {
        if constexpr (Pairs) return get(w);
        else return word_bits(int8_singles<I>(w));
    }
};

template <int BITS> struct CodeLine {
    static constexpr bool widens_cheaply = false;
    static constexpr int bytes = 64;
    static constexpr int lines = BITS == 5 ? 5 : BITS == 6 ? 3 : 1;
    static constexpr int inputs = BITS == 5 ? 32 : BITS == 6 ? 16 : 32 / BITS;
    static constexpr int AT = 7 - BITS;  // bit at which a code begins in the mantissa of a bf16
    static constexpr uint32_t BASE = uint32_t(127 + BITS) << 7;

    // Moves n bits of codes from bit `from` of the halves of w to bit `to` of the codes. Even, Odd: which
    // halves.
    template <bool Even, bool Odd> static vi bits(vi w, int from, int n, int to, vi beside) {
        constexpr uint32_t halves = (Even && Odd ? 1u : 0u) | 0x10000u;
        return picked(shifted(w, (Odd ? 0 : 16) + AT + to - from), ((1u << n) - 1) * halves << (AT + to), beside);
    }
    template <bool Even, bool Odd> static vi base() {
        return splat_word(BASE * ((Even && Odd ? 1u : 0u) | 0x10000u));
    }

    template <bool Pairs, int I> static vi number(const uint8_t* w, int step) {
        constexpr int pair = Pairs ? I : I / 2, each = 16 / BITS;  // each: codes in half a word
        constexpr bool even = Pairs || I % 2 == 0, odd = Pairs || I % 2 == 1;
        if constexpr (pair < lines * each) {
            return bits<even, odd>(words(w + pair / each * step), pair % each * BITS, BITS, 0, base<even, odd>());
        } else if constexpr (!Pairs) {
            const vi found = number<true, pair>(w, step);
            return word_bits(even ? low(found) : high(found));
        } else if constexpr (BITS == 5) {  // the last pair: its bits are the last bits of the words' halves
            vi x = base<true, true>();
            NX_UNROLL for (int i = 0; i < 5; ++i) x = bits<true, true>(words(w + i * step), 15, 1, i, x);
            return x;
        } else {  // the last two pairs: low four bits in this word, high two in the third
            const vi x = bits<true, true>(words(w + (pair - 6) * step), 12, 4, 0, base<true, true>());
            return bits<true, true>(words(w + 2 * step), 12 + 2 * (pair - 6), 2, 4, x);
        }
    }
};
template <> struct CodeLine<8> {
    static constexpr bool widens_cheaply = false;
    static constexpr int inputs = 4, lines = 1, bytes = 64;
    static vf single(vi w, int byte) {
        const vi x = picked(shifted(w, 15 - 8 * byte), 255u << 15, splat_word(0x43800000u));  // 256 + 128 + q
        return sub(as_float(x), splat(384.f));
    }
    template <bool Pairs, int I> static vi number(const uint8_t* w, int) {
        if constexpr (!Pairs) return word_bits(single(words(w), I));
        // Exact: bf16 holds all integers below 256.
        else return both(shifted(word_bits(single(words(w), 2 * I)), -16), word_bits(single(words(w), 2 * I + 1)));
    }
};

// Calls does(number) for each number of a line, as constants.
template <int... I, class Does>
NX_INLINE inline void each_number(std::integer_sequence<int, I...>, const Does& does) {
    (does(std::integral_constant<int, I>{}), ...);
}
template <class Line, bool Pairs> using NumbersOf = std::make_integer_sequence<int, Pairs ? Line::inputs / 2 : Line::inputs>;

}  // namespace
