// The layout of a panel of few-bit weights in memory: one stream, cell after cell of k.
//
// A cell is the inputs that share a scale. Its scales are in front of its codes. W: the panel's outputs, V = W
// / 16.
//
//     INT4   [f16 scale x W] codes                             the group's inputs, 32, 64 or 128; code 8 is zero
//     INT4Z  [f16 scale x W] [u8 zero x W] codes
//     Q4_0   as INT4, 32 inputs
//     Q8_0   [f16 scale x W] codes                             32 inputs
//     Q5_0   the same
//     Q4_1   [f16 scale x W] [f16 min x W] codes               32 inputs; the min is added
//     Q5_1   the same
//     Q4_K   [f16 d x W] [f16 dmin x W], then 8 cells of       32 inputs
//            [u8 scale x W] [u8 min x W] codes
//     Q5_K   the same
//     Q6_K   [f16 d x W], then 16 cells of [i8 scale x W] codes   16 inputs
//
// Codes are in lines of 64 bytes: a word of 32 bits for each of 16 outputs, V lines side by side.
//
//     4 bits  8 inputs in a word: pair i is at bits 4 i (even input) and 16 + 4 i (odd)
//     5 bits  32 inputs in 5 words: 3 pairs in each word, at bits 5 i and 16 + 5 i; bit i of the last pair is at
//             bits 15 and 31 of word i
//     6 bits  16 inputs in 3 words: 2 pairs in each word, at bits 6 i and 16 + 6 i; for the last two pairs, the low
//             4 bits are at bits 12 and 28 of words 0 and 1, the high 2 bits at bits 12 and 28, and 14 and 30, of
//             word 2
//     8 bits  4 inputs in a word, one byte each, with 128 added
//
// So one shift moves both codes of most pairs into the mantissas of a pair of bf16 (lines.h).
#pragma once
#include <cstdint>

namespace {

// The layout of a kind. cell: inputs of a cell; 0: the weight's `block`. cells: cells that share a header.
// header, scales: bytes for each output, of a header and of a cell's scales.
struct CodedLayout {
    int cell, cells, header, scales;
    int bits;
    float unit;     // of f16 scales; 1 / 256 keeps small scales of bf16 and f32 files in f16's range
    float zero;     // the code that stands for 0, if it is the same for all cells
    bool mins;      // a cell has a minimum, which is added to each of its numbers

    int inputs(int block) const { return cell ? cell : block; }
    // In bytes for each output.
    int cell_bytes(int block) const { return scales + inputs(block) * bits / 8; }
    int super_bytes(int block) const { return header + cells * cell_bytes(block); }
    int64_t output_bytes(int n_in, int block) const {
        return int64_t(n_in / (inputs(block) * cells)) * super_bytes(block);
    }
};

constexpr int FIRST_CODED = 4;  // kinds from this one on: INT4, INT4Z, Q4_0, Q8_0, Q4_K, Q5_K, Q6_K, Q4_1, Q5_0, Q5_1
constexpr CodedLayout CODED[] = {
    {0, 1, 0, 2, 4, 1.f / 256, 8, false},
    {0, 1, 0, 3, 4, 1.f / 256, 0, false},
    {32, 1, 0, 2, 4, 1.f, 8, false},
    {32, 1, 0, 2, 8, 1.f, 0, false},
    {32, 8, 4, 2, 4, 1.f, 0, true},
    {32, 8, 4, 2, 5, 1.f, 0, true},
    {16, 16, 2, 1, 6, 1.f, 32, false},
    {32, 1, 0, 4, 4, 1.f, 0, true},
    {32, 1, 0, 2, 5, 1.f, 16, false},
    {32, 1, 0, 4, 5, 1.f, 0, true},
};

inline bool is_coded(int kind) { return kind >= FIRST_CODED; }
inline const CodedLayout& coded_layout(int kind) { return CODED[kind - FIRST_CODED]; }

// The addresses of one cell of a panel: `super` of its header, `scales` and `codes` of its own.
struct Cell {
    const uint8_t *super, *scales, *codes;
};

inline Cell cell_of(const CodedLayout& l, int block, const uint8_t* panel, int wide, int cell) {
    const uint8_t* super = panel + int64_t(cell / l.cells) * l.super_bytes(block) * wide;
    const uint8_t* own = super + (l.header + cell % l.cells * l.cell_bytes(block)) * wide;
    return {super, own, own + l.scales * wide};
}

}  // namespace
