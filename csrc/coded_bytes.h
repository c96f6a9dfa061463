// Rows of bytes times a panel of few-bit weights. Some cells' codes are unpacked into bytes in the first-level
// cache, and all rows are multiplied by them there (byte_products.h).
#pragma once
#include "byte_products.h"
#include "cells.h"

#if defined(NX_BYTES)
namespace {

// Moves n bits of w from bit `from` to bit `to`, in both halves of each word, and puts them beside others.
inline vi moved(vi w, int from, int n, int to, vi beside) {
    return picked(shifted(w, to - from), ((1u << n) - 1) * 0x10001u << to, beside);
}

// to <- a cell's codes as bytes, in the order of ByteRows. coded.h has their layout in words.
template <int BITS> inline void bytes_of(const uint8_t* codes, int inputs, int V, uint8_t* to) {
    constexpr int ahead = 2048;
    const int step = V * 64;
    const vi none = splat_word(0);
    const int lines = inputs * BITS / 32;
    for (int i = 0; i < lines * step; i += 64) __builtin_prefetch(codes + ahead + i);
    if constexpr (BITS == 8) {
        for (int i = 0; i < lines * step; i += 64) store_words(to + i, words(codes + i));
    } else if constexpr (BITS == 4) {
        constexpr uint32_t low = 0x0f0f0f0fu;
        for (int l = 0; l < lines; ++l, codes += step, to += 2 * step)
            for (int v = 0; v < step; v += 64) {
                const vi w = words(codes + v);
                store_words(to + v, picked(w, low, none));
                store_words(to + step + v, picked(shifted(w, -4), low, none));
            }
    } else if constexpr (BITS == 5) {
        for (int v = 0; v < step; v += 64) {
            vi w[5], last = none;
            NX_UNROLL for (int i = 0; i < 5; ++i) {
                w[i] = words(codes + i * step + v);
                last = moved(w[i], 15, 1, 8 + i, last);
            }
            constexpr int place[5] = {0, 1, 2, 4, 5};
            NX_UNROLL for (int i = 0; i < 5; ++i)
                store_words(to + place[i] * step + v, moved(w[i], 5, 5, 8, moved(w[i], 0, 5, 0, none)));
            store_words(to + 3 * step + v, moved(w[1], 10, 5, 8, moved(w[0], 10, 5, 0, none)));
            store_words(to + 6 * step + v, moved(w[3], 10, 5, 8, moved(w[2], 10, 5, 0, none)));
            store_words(to + 7 * step + v, moved(w[4], 10, 5, 0, last));
        }
    } else {
        for (int v = 0; v < step; v += 64) {
            vi w[3];
            NX_UNROLL for (int i = 0; i < 3; ++i) {
                w[i] = words(codes + i * step + v);
                store_words(to + i * step + v, moved(w[i], 6, 6, 8, moved(w[i], 0, 6, 0, none)));
            }
            const vi first = moved(w[2], 12, 2, 4, moved(w[0], 12, 4, 0, none));
            store_words(to + 3 * step + v, moved(w[2], 14, 2, 12, moved(w[1], 12, 4, 8, first)));
        }
    }
}

// chunk <- cells [from, to).
template <int BITS, bool Mins> void byte_cells(const Cells& cells, int from, int to, ByteCells& chunk) {
    for (int c = from; c < to; ++c) {
        const Cell cell = cells.at<CodeLine<BITS>>(c);
        for (int v = 0; v < cells.V; ++v) {
            const CellScale found = cells.scale<Mins ? MINS : STARTED>(cell, v);
            store(chunk.scales + (c - from) * PANEL + v * 16, found.scale);
            if constexpr (Mins) store(chunk.mins + (c - from) * PANEL + v * 16, found.min);
        }
        bytes_of<BITS>(cell.codes, cells.inputs, cells.V, chunk.words + (c - from) * cells.inputs * cells.V * 16);
    }
}

inline void byte_chunk(const Cells& cells, int from, int to, ByteCells& chunk) {
    const bool mins = cells.coded->mins;
    switch (cells.coded->bits) {
        case 4: return mins ? byte_cells<4, true>(cells, from, to, chunk) : byte_cells<4, false>(cells, from, to, chunk);
        case 5: return mins ? byte_cells<5, true>(cells, from, to, chunk) : byte_cells<5, false>(cells, from, to, chunk);
        case 6: return byte_cells<6, false>(cells, from, to, chunk);
        default: return byte_cells<8, false>(cells, from, to, chunk);
    }
}

// As chains_by_panel, for rows of bytes.
template <class Done>
inline void bytes_by_panel(const ByteRows& x, int from, int to, const NxWeight& w, const Panel& panel, const Done& done) {
    static thread_local ByteCells chunk;
    alignas(64) float totals[BYTE_ROWS * PANEL];
    const CodedLayout& l = coded_layout(w.kind);
    const Cells held(w, panel);
    const int cells = x.cells(), steps = x.inputs() / 4;
    for (int first = from; first < to; first += BYTE_ROWS) {
        const int m = to - first < BYTE_ROWS ? to - first : BYTE_ROWS;
        for (int i = 0; i < m * PANEL; i += 16) store(totals + i, zero());
        for (int c = 0; c < cells; c += BYTE_CELLS) {
            const int end = c + BYTE_CELLS < cells ? c + BYTE_CELLS : cells;
            byte_chunk(held, c, end, chunk);
            for (int i = 0; i < m; i += BYTE_TOGETHER) {
                const int some = m - i < BYTE_TOGETHER ? m - i : BYTE_TOGETHER;
                ByteProduct a{chunk, panel.vectors, end - c, steps, {}, {}, {}, {}, totals + i * PANEL};
                for (int j = 0; j < some; ++j) {
                    const int row = first + i + j;
                    a.x[j] = x.words(row) + c * steps;
                    a.start[j] = x.start(row) + c, a.scale[j] = x.scale(row) + c, a.sums[j] = x.sums(row) + c;
                }
                if (l.mins) multiply_bytes<MINS>(a, some);
                else l.bits == 8 ? multiply_bytes<SCALED>(a, some) : multiply_bytes<STARTED>(a, some);
            }
        }
        for (int j = 0; j < m; ++j) done(first + j, panel.first, panel.vectors * 16, totals + j * PANEL);
    }
}

}  // namespace
#endif
