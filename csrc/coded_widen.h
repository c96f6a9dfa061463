// Few-bit codes of a panel as numbers: pairs of bf16, or f32, a chunk of k at a time, in a scratch.
//
// A code q of b bits in the upper mantissa of a number whose exponent says 2**b is the number 2**b + q, exactly: a
// shift, a mask and an or. What is too much, 2**b and the code's zero, comes off a cell's sum again: it starts at
// -(2**b + zero) times the sum of the row's inputs there.
#pragma once
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
inline vi both(vi a, vi b) { return _mm512_or_si512(a, b); }
inline vi word_bits(vf x) { return _mm512_castps_si512(x); }
inline void store_words(uint8_t* p, vi w) { _mm512_store_si512(p, w); }
inline vf of_halves(const uint8_t* p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p)); }
inline vf of_bytes(const uint8_t* p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)p)));
}
inline vf of_signed_bytes(const uint8_t* p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p)));
}
#else
inline vi shifted(vi w, int by) { return by >= 0 ? w << by : w >> -by; }
inline vi picked(vi w, uint32_t mask, vi beside) { return (w & mask) | beside; }
inline vi both(vi a, vi b) { return a | b; }
inline vi word_bits(vf x) { return as_words(x); }
inline void store_words(uint8_t* p, vi w) { memcpy(p, &w, 64); }
template <class T> inline vi lanes_of(const uint8_t* p) {
    typedef T narrow __attribute__((vector_size(16 * sizeof(T))));
    typedef int32_t wide __attribute__((vector_size(64)));
    narrow x;
    memcpy(&x, p, sizeof(x));
    return (vi)__builtin_convertvector(x, wide);
}
inline vf whole(vi w) {
    typedef int32_t wide __attribute__((vector_size(64)));
    return __builtin_convertvector((wide)w, vf);
}
inline vf of_halves(const uint8_t* p) {
    const vi h = lanes_of<uint16_t>(p), size = h & 0x7fffu;
    const vi open = (vi)(size >= 0x7c00u) & 0x7f800000u;  // infinite or NaN
    const vf value = mul(as_float(size << 13), splat(0x1p112f));
    return as_float(as_words(value) | open | (h & 0x8000u) << 16);
}
inline vf of_bytes(const uint8_t* p) { return whole(lanes_of<uint8_t>(p)); }
inline vf of_signed_bytes(const uint8_t* p) { return whole(lanes_of<int8_t>(p)); }
#endif

// Some cells of a panel of `wide` outputs as numbers.
struct CodedChunk {
    static constexpr int CELLS = 8;
    alignas(64) uint8_t words[MOST_CELL * PANEL * 4];  // [k or pair of k][outputs]
    alignas(64) float scales[CELLS * PANEL];           // [cell][outputs], as the following
    alignas(64) float starts[CELLS * PANEL];           // what a sum starts at, for each unit of the row's own sum
    alignas(64) float mins[CELLS * PANEL];             // added for each unit of that, of kinds that have mins
};

// Codes of 4, 5 or 6 bits: a line of 8 inputs (number `line` of its cell) -> 4 pairs, or 8 numbers.
template <int BITS> struct NarrowCodes {
    static constexpr int LINE = 8, AT = 7 - BITS;  // where a code begins in the mantissa of a bf16
    static constexpr uint32_t BASE = (127 + BITS) << 7, MORE = BITS - 4;

    static int low_bytes(int inputs) { return inputs / 2; }

    template <bool Pairs, int N> static vi number(vi w, vi high, int line) {
        constexpr int i = Pairs ? N : N / 2, even = !Pairs && N % 2 == 0 ? 16 : 0;
        constexpr uint32_t twice = Pairs ? 0x10001 : 0x10000;
        vi x = picked(shifted(w, even + AT - 4 * i), (15u << AT) * twice, splat_word(BASE * twice));
        if constexpr (MORE > 0)
            x = picked(shifted(high, even + AT + 4 - int(MORE) * (4 * line + i)), (((1u << MORE) - 1) << (AT + 4)) * twice,
                       x);
        return x;
    }
};

template <int BITS> struct LineOf {  // one line -> numbers, `step` bytes apart
    using Codes = NarrowCodes<BITS>;
    template <bool Pairs> static inline void widen(const uint8_t* low, const uint8_t* high, int line, uint8_t* to, int step) {
        const vi w = words(low), h = BITS > 4 ? words(high) : w;
        const auto put = [&](int n, vi x) { store_words(to + n * step, x); };
        put(0, Codes::template number<Pairs, 0>(w, h, line));
        put(1, Codes::template number<Pairs, 1>(w, h, line));
        put(2, Codes::template number<Pairs, 2>(w, h, line));
        put(3, Codes::template number<Pairs, 3>(w, h, line));
        if constexpr (!Pairs) {
            put(4, Codes::template number<Pairs, 4>(w, h, line));
            put(5, Codes::template number<Pairs, 5>(w, h, line));
            put(6, Codes::template number<Pairs, 6>(w, h, line));
            put(7, Codes::template number<Pairs, 7>(w, h, line));
        }
    }
};

template <> struct LineOf<8> {
    static inline vf number(vi w, int byte) {
        const vi x = picked(shifted(w, 15 - 8 * byte), 255u << 15, splat_word(0x43800000u));  // 256 + 128 + q
        return sub(as_float(x), splat(384.f));
    }
    template <bool Pairs> static inline void widen(const uint8_t* low, const uint8_t*, int, uint8_t* to, int step) {
        const vi w = words(low);
        vf x[4];
        NX_UNROLL for (int i = 0; i < 4; ++i) x[i] = number(w, i);
        if constexpr (Pairs) {  // whole numbers below 256: bf16 holds them
            store_words(to, both(shifted(word_bits(x[0]), -16), word_bits(x[1])));
            store_words(to + step, both(shifted(word_bits(x[2]), -16), word_bits(x[3])));
        } else {
            NX_UNROLL for (int i = 0; i < 4; ++i) store_words(to + i * step, word_bits(x[i]));
        }
    }
};

// A cell's codes -> its words.
template <int BITS, bool Pairs> inline void widen_codes(const uint8_t* codes, int inputs, int V, uint8_t* to) {
    constexpr int line = BITS == 8 ? 4 : 8, made = Pairs ? line / 2 : line, ahead = 4096;
    const int step = V * 64;
    const uint8_t* high = codes + inputs / line * step;
    const auto one = [&](int i) {
        for (int v = 0; v < V; ++v, codes += 64, to += 64) {
            __builtin_prefetch(codes + ahead);
            LineOf<BITS>::template widen<Pairs>(codes, high + v * 64, i, to, step);
        }
        to += (made - 1) * step;
    };
    if constexpr (BITS == 5) {
        one(0), one(1), one(2), one(3);
    } else if constexpr (BITS == 6) {
        one(0), one(1);
    } else {
        for (int i = 0; i < inputs / line; ++i) one(i);
    }
    if constexpr (BITS == 5 || BITS == 6) for (int v = 0; v < V; ++v) __builtin_prefetch(high + v * 64 + ahead);
}

// A cell's scales, starts and mins, of a panel of V vectors.
inline void cell_scales(int kind, const CodedLayout& l, const Cell& cell, int V, float* scales, float* starts,
                        float* mins) {
    const float base = l.bits == 8 ? 0.f : -float((1 << l.bits) + int(l.zero));
    for (int v = 0; v < V; ++v) {
        vf start = splat(base), scale;
        if (l.header == 0) {
            scale = mul(of_halves(cell.scales + v * 32), splat(l.unit));
            if (kind == INT4Z) start = sub(start, of_bytes(cell.scales + V * 32 + v * 16));
            if (l.mins) store(mins + v * 16, of_halves(cell.scales + V * 32 + v * 32));
        } else if (l.mins) {
            scale = mul(of_halves(cell.super + v * 32), of_bytes(cell.scales + v * 16));
            const vf min = mul(of_halves(cell.super + V * 32 + v * 32), of_bytes(cell.scales + V * 16 + v * 16));
            store(mins + v * 16, sub(zero(), min));
        } else {
            scale = mul(of_halves(cell.super + v * 32), of_signed_bytes(cell.scales + v * 16));
        }
        store(scales + v * 16, scale);
        store(starts + v * 16, start);
    }
}

// Cells [from, to) of a panel of V vectors.
template <int BITS, bool Pairs>
void widen_cells(int kind, int block, const uint8_t* panel, int V, int from, int to, CodedChunk& chunk) {
    const CodedLayout& l = coded_layout(kind);
    const int inputs = l.inputs(block);
    for (int c = from; c < to; ++c) {
        const Cell cell = cell_of(l, block, panel, V * 16, c);
        const int at = (c - from) * PANEL;
        cell_scales(kind, l, cell, V, chunk.scales + at, chunk.starts + at, chunk.mins + at);
        widen_codes<BITS, Pairs>(cell.codes, inputs, V,
                                 chunk.words + int64_t(c - from) * inputs / (Pairs ? 2 : 1) * V * 64);
    }
}

template <bool Pairs>
inline void widen_chunk(const NxWeight& w, const Panel& panel, int from, int to, CodedChunk& chunk) {
    const auto go = [&](auto widen) { widen(w.kind, w.block, panel.data, panel.vectors, from, to, chunk); };
    switch (coded_layout(w.kind).bits) {
        case 4: return go(widen_cells<4, Pairs>);
        case 5: return go(widen_cells<5, Pairs>);
        case 6: return go(widen_cells<6, Pairs>);
        default: return go(widen_cells<8, Pairs>);
    }
}

}  // namespace
