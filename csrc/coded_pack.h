// Packs few-bit weights from their form in files into panels (coded.h).
#pragma once
#include <cstring>

#include "panels.h"

namespace {

// A run of inputs of one output that share a header: their codes, and the bytes of the header and the scales as
// files have them.
struct CodedRun {
    uint8_t codes[256];
    uint8_t header[4];       // two f16
    uint8_t scales[16][4];   // for each cell, in the order of coded.h
};

// to <- scale and min, 6 bits each, of group j of the 8 in a block of GGUF's Q4_K or Q5_K.
inline void scale_and_min(const uint8_t* packed, int j, uint8_t* to) {
    if (j < 4) {
        to[0] = packed[j] & 63, to[1] = packed[j + 4] & 63;
    } else {
        to[0] = uint8_t((packed[j + 4] & 15) | (packed[j - 4] >> 6 << 4));
        to[1] = uint8_t((packed[j + 4] >> 4) | (packed[j] >> 6 << 4));
    }
}

inline int gguf_block_bytes(int kind) {
    switch (kind) {
        case Q4_0: return 18;
        case Q4_1: return 20;
        case Q5_0: return 22;
        case Q5_1: return 24;
        case Q8_0: return 34;
        case Q4_K: return 144;
        case Q5_K: return 176;
        default: return 210;
    }
}

// Reads one block of a GGUF file.
inline void read_block(int kind, const uint8_t* p, CodedRun& run) {
    if (kind == Q4_0 || kind == Q4_1 || kind == Q5_0 || kind == Q5_1) {
        const int scales = coded_layout(kind).scales;
        const uint8_t *high = p + scales, *low = kind == Q5_0 || kind == Q5_1 ? high + 4 : high;
        memcpy(run.scales[0], p, size_t(scales));
        for (int i = 0; i < 32; ++i) {
            const int four = low[i % 16] >> (i / 16 * 4) & 15;
            run.codes[i] = uint8_t(low == high ? four : four | (high[i / 8] >> i % 8 & 1) << 4);
        }
    } else if (kind == Q8_0) {
        memcpy(run.scales[0], p, 2);
        for (int i = 0; i < 32; ++i) run.codes[i] = p[2 + i] ^ 128;
    } else if (kind == Q6_K) {
        const uint8_t *low = p, *high = p + 128;
        memcpy(run.header, p + 208, 2);
        for (int c = 0; c < 16; ++c) run.scales[c][0] = p[192 + c];
        for (int i = 0; i < 256; ++i) {
            const int half = i / 128, at = i % 128;
            const int four = low[half * 64 + at % 64] >> (at / 64 * 4) & 15;
            run.codes[i] = uint8_t(four | (high[half * 32 + at % 32] >> (at / 32 * 2) & 3) << 4);
        }
    } else {
        const uint8_t* low = p + (kind == Q5_K ? 48 : 16);
        memcpy(run.header, p, 4);
        for (int c = 0; c < 8; ++c) scale_and_min(p + 4, c, run.scales[c]);
        for (int i = 0; i < 256; ++i) {
            const int four = low[i / 64 * 32 + i % 32] >> (i % 64 / 32 * 4) & 15;
            run.codes[i] = uint8_t(kind == Q5_K ? four | (p[16 + i % 32] >> (i / 32) & 1) << 4 : four);
        }
    }
}

inline void put_word(uint8_t* line, int lane, uint32_t word) { memcpy(line + lane * 4, &word, 4); }

// Puts the codes of a cell of `inputs` inputs, of 4 or 8 bits, into lane `lane` of vector v of V.
inline void put_codes(const uint8_t* q, int bits, int inputs, int V, int v, int lane, uint8_t* codes) {
    uint8_t* line = codes + v * 64;
    if (bits == 8) {
        for (int k = 0; k < inputs; k += 4, line += V * 64) {
            uint32_t word;
            memcpy(&word, q + k, 4);
            put_word(line, lane, word);
        }
        return;
    }
    for (int k = 0; k < inputs; k += 8, line += V * 64) {
        uint32_t word = 0;
        for (int i = 0; i < 4; ++i)
            word |= uint32_t(q[k + 2 * i] & 15) << 4 * i | uint32_t(q[k + 2 * i + 1] & 15) << (16 + 4 * i);
        put_word(line, lane, word);
    }
}

// The same for 5 bits, 32 inputs in 5 words, and for 6 bits, 16 inputs in 3 words.
inline void put_odd_codes(const uint8_t* q, int bits, int V, int v, int lane, uint8_t* codes) {
    const int each = 16 / bits, lines = bits == 5 ? 5 : 3;
    uint32_t words[5] = {};
    for (int i = 0; i < 2 * lines * each; ++i)
        words[i / 2 / each] |= uint32_t(q[i]) << (i / 2 % each * bits + i % 2 * 16);
    for (int side = 0; side < 2; ++side) {  // even inputs, then odd ones
        const uint8_t* rest = q + 2 * lines * each + side;
        const int at = side * 16;
        if (bits == 5) {
            for (int i = 0; i < 5; ++i) words[i] |= uint32_t(rest[0] >> i & 1) << (at + 15);
        } else {
            words[0] |= uint32_t(rest[0] & 15) << (at + 12), words[1] |= uint32_t(rest[2] & 15) << (at + 12);
            words[2] |= uint32_t(rest[0] >> 4 | rest[2] >> 4 << 2) << (at + 12);
        }
    }
    for (int i = 0; i < lines; ++i) put_word(codes + (i * V + v) * 64, lane, words[i]);
}

// The output of row r: first + r or, if interleaved, in every other group of 16.
inline int output_of(int r, int first, int interleave) {
    return interleave == 1 ? first + r : first * 16 + r / 16 * 16 * interleave + r % 16;
}

// Puts run `number` of output n into the panels dst of a weight with n_out outputs.
inline void put_run(const CodedRun& run, int number, const CodedLayout& l, int kind, int block, uint8_t* dst, int n_out,
                    int n_in, int n) {
    const int begin = n / PANEL * PANEL, wide = n_out - begin < PANEL ? n_out - begin : PANEL, at = n - begin;
    uint8_t* super = dst + begin * l.output_bytes(n_in, block) + int64_t(number) * l.super_bytes(block) * wide;
    for (int i = 0; i < l.header; i += 2) memcpy(super + i * wide + at * 2, run.header + i, 2);
    const int inputs = l.inputs(block);
    for (int c = 0; c < l.cells; ++c) {
        uint8_t* cell = super + (l.header + c * l.cell_bytes(block)) * wide;
        if (l.header) for (int i = 0; i < l.scales; ++i) cell[i * wide + at] = run.scales[c][i];
        else memcpy(cell + at * 2, run.scales[c], 2);
        if (!l.header && l.mins) memcpy(cell + (wide + at) * 2, run.scales[c] + 2, 2);
        if (kind == INT4Z) cell[2 * wide + at] = run.scales[c][2];
        const uint8_t* codes = run.codes + c * inputs;
        uint8_t* to = cell + l.scales * wide;
        if (l.bits == 5 || l.bits == 6) put_odd_codes(codes, l.bits, wide / 16, at / 16, at % 16, to);
        else put_codes(codes, l.bits, inputs, wide / 16, at / 16, at % 16, to);
    }
}

// Packs rows of blocks of a GGUF file, one after another, into outputs first, first + 1, ... of a packed
// weight.
inline void pack_blocks(const uint8_t* src, int rows, uint8_t* dst, int n_out, int n_in, int kind, int first,
                        int interleave) {
    const CodedLayout& l = coded_layout(kind);
    const int runs = n_in / (l.inputs(0) * l.cells), bytes = gguf_block_bytes(kind);
    CodedRun run{};
    for (int r = 0; r < rows; ++r)
        for (int b = 0; b < runs; ++b, src += bytes) {
            read_block(kind, src, run);
            put_run(run, b, l, kind, 0, dst, n_out, n_in, output_of(r, first, interleave));
        }
}

// Packs INT4 and INT4Z. codes [rows, n_in / 2] (even inputs in the low halves), scales [rows, n_in / block] f16
// in units of the layout, zeros [rows, n_in / block].
inline void pack_codes(const uint8_t* codes, const uint16_t* scales, const uint8_t* zeros, int rows, uint8_t* dst,
                       int n_out, int n_in, int kind, int block, int first, int interleave) {
    const CodedLayout& l = coded_layout(kind);
    CodedRun run{};
    for (int r = 0; r < rows; ++r)
        for (int b = 0; b < n_in / block; ++b) {
            for (int i = 0; i < block / 2; ++i, ++codes)
                run.codes[2 * i] = *codes & 15, run.codes[2 * i + 1] = *codes >> 4;
            memcpy(run.scales[0], scales++, 2);
            if (kind == INT4Z) run.scales[0][2] = *zeros++;
            put_run(run, b, l, kind, block, dst, n_out, n_in, output_of(r, first, interleave));
        }
}

}  // namespace
