// A weight in the form that products read: panels of 64 outputs.
//
// A weight [N, K] is cut into panels of 64 outputs (the last one narrower, a multiple of 16). In a panel, the
// outputs of one k (or of one pair of k: bf16, e4m3, int8) are side by side, so a panel is read front to back.
//
// e4m3 and int8 have a scale for each output and block of k. A block's sum is multiplied by it when it is
// complete. Kinds from INT4 on have their scales beside their codes (coded.h).
#pragma once
#include <cstdint>

#include "coded.h"

namespace {

constexpr int PANEL = 64;  // outputs of a whole panel

enum Kind : int32_t {
    F32 = 0, BF16 = 1, E4M3 = 2, INT8 = 3,
    INT4 = FIRST_CODED, INT4Z = 5, Q4_0 = 6, Q8_0 = 7, Q4_K = 8, Q5_K = 9, Q6_K = 10, Q4_1 = 11, Q5_0 = 12, Q5_1 = 13
};

}  // namespace

extern "C" {
// The same layout as nextn.ops.cpu.interface.Weight.
struct NxWeight {
    const uint8_t* data;   // panels
    const float* scales;   // [panels][blocks of k][panel's outputs], only for e4m3 and int8, else null
    int32_t n_out, n_in;   // n_out: as packed, a multiple of 16; n_in: even unless f32
    int32_t kind;
    int32_t block;         // number of k with one scale, even; of coded kinds only INT4 and INT4Z have it
    int64_t stride;        // bytes from one weight to the next, if there are several (heads, experts)
    int64_t scale_stride;  // floats from one weight's scales to the next
    int32_t way;           // of multiplying: 0 the level's default, 1 tiles, 2 bf16 pairs, 3 f32 multiply-adds,
                           // 4 dot products of bytes (coded kinds only)
    int32_t non_temporal;  // 1: few rows read it past the outer caches, because a step reads it once
};
}

namespace {

inline int64_t element_bytes(int kind) { return kind == F32 ? 4 : kind == BF16 ? 2 : 1; }
// Bytes of an output in its panel, without the scales of e4m3 and int8.
inline int64_t output_bytes(const NxWeight& w) {
    return is_coded(w.kind) ? coded_layout(w.kind).output_bytes(w.n_in, w.block) : w.n_in * element_bytes(w.kind);
}

struct Panel {
    const uint8_t* data;
    const float* scales;
    int vectors;  // vectors of 16 outputs: 1..4
    int first;    // first output
};

inline int panels(const NxWeight& w) { return (w.n_out + PANEL - 1) / PANEL; }

inline Panel panel_of(const NxWeight& w, int p, int member = 0) {
    const int first = p * PANEL, width = w.n_out - first < PANEL ? w.n_out - first : PANEL;
    const int64_t blocks = w.scales ? (w.n_in + w.block - 1) / w.block : 0;
    return {w.data + member * w.stride + first * output_bytes(w),
            w.scales ? w.scales + member * w.scale_stride + first * blocks : nullptr, width / 16, first};
}

// Outputs [begin, end) of a weight, in whole panels except the last.
inline NxWeight outputs_of(const NxWeight& w, int64_t begin, int64_t end) {
    const Panel first = panel_of(w, int(begin / PANEL));
    NxWeight some = w;
    some.data = first.data, some.scales = first.scales;
    some.n_out = int32_t(end - begin);
    return some;
}

// Words of 32 bits in a row that is multiplied by the weight: pairs of bf16, or f32.
inline int row_words(const NxWeight& w) { return w.kind == F32 ? w.n_in : w.n_in / 2; }
// Words of a row that share a scale.
inline int block_words(const NxWeight& w) { return w.scales ? w.block / 2 : row_words(w); }

// The rows of a matrix, in order or by index. Row i begins at base[stride * i], or at base[stride * index[i]].
struct Rows {
    const uint32_t* base;
    int64_t stride;  // words
    const int32_t* index = nullptr;
    const uint32_t* operator()(int i) const { return base + stride * (index ? index[i] : i); }
};

}  // namespace
