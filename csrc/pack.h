// Packs a weight from its form in checkpoints, [N, K] row by row, into panels. Not in the hot path, so the
// loops are plain.
#pragma once
#include "linear.h"

namespace {

// Copies src [rows, columns] to outputs first, first + 1, ... of a packed weight. ld: elements from one row of
// src to the next. transposed: src is [columns, rows]. interleave 2: the rows go to every other group of 16
// outputs, beginning with group `first`.
template <class T>
void pack_rows(const T* src, int rows, int columns, int64_t ld, bool transposed, T* dst, int n_out, int n_in,
               int kind, int first, int interleave) {
    const int group = kind == F32 ? 1 : 2;  // adjacent inputs of one output
    for (int r = 0; r < rows; ++r) {
        const int n = interleave == 1 ? first + r : first * 16 + r / 16 * 16 * interleave + r % 16;
        const int begin = n / PANEL * PANEL, width = n_out - begin < PANEL ? n_out - begin : PANEL;
        T* to = dst + int64_t(begin) * n_in + int64_t(n - begin) * group;
        for (int k = 0; k < columns; k += group, to += int64_t(width) * group)
            for (int j = 0; j < group && k + j < columns; ++j)
                to[j] = transposed ? src[(k + j) * ld + r] : src[r * ld + k + j];
    }
}

}  // namespace
