// From a weight as checkpoints have it, [N, K] by rows, to panels. Not in the hot path: plain loops.
#pragma once
#include "linear.h"

namespace {

// Copies rows src[rows, columns] (row stride ld; transposed: src is [columns, rows]) to outputs first,
// first + 1, ... of a packed weight; interleave 2: to every other group of 16 outputs, from group `first` on.
template <class T>
void pack_rows(const T* src, int rows, int columns, int64_t ld, bool transposed, T* dst, int n_out, int n_in,
               int kind, int first, int interleave) {
    const int group = kind == F32 ? 1 : 2;  // inputs of one output that lie side by side
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
