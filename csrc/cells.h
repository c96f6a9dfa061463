// The cells of a panel. A cell is the inputs that share a scale. Weights without scales are one cell.
#pragma once
#include "lines.h"

namespace {

// How the sum of a cell starts, and how it is added to the output when it is complete:
//
//     PLAIN    starts at 0; the sum is the output
//     SCALED   starts at 0; scale * sum is added to the output
//     STARTED  starts at start * (sum of the row's inputs in the cell); scale * sum is added
//     MINS     as STARTED; min * (sum of the row's inputs in the cell) is added too
enum Form { PLAIN, SCALED, STARTED, MINS };

struct CellScale {  // for 16 outputs
    vf scale, start, min;
};

struct Cells {
    const uint8_t* data;
    const float* scales;
    const CodedLayout* coded;  // null: scales are in an array of their own, or there are none
    int kind, V, block, n_in, inputs, count;

    Cells(const NxWeight& w, const Panel& panel)
        : data(panel.data), scales(panel.scales), coded(is_coded(w.kind) ? &coded_layout(w.kind) : nullptr), kind(w.kind),
          V(panel.vectors), block(w.block), n_in(w.n_in) {
        inputs = coded ? coded->inputs(block) : w.scales && block < n_in ? block : n_in;
        count = (n_in + inputs - 1) / inputs;
    }
    int inputs_of(int c) const { return c + 1 < count ? inputs : n_in - c * inputs; }

    template <class Line> Cell at(int c) const {
        if (coded) return cell_of(*coded, block, data, V * 16, c);
        const auto* own = scales ? reinterpret_cast<const uint8_t*>(scales + int64_t(c) * V * 16) : nullptr;
        return {nullptr, own, data + int64_t(c) * (inputs / Line::inputs) * V * Line::bytes};
    }
    // Of vector v of the cell's outputs.
    template <int FORM> CellScale scale(const Cell& cell, int v) const {
        if (!coded) return {load(reinterpret_cast<const float*>(cell.scales) + v * 16), zero(), zero()};
        const CodedLayout& l = *coded;
        CellScale found{zero(), splat(-float((1 << l.bits) + int(l.zero))), zero()};
        if (l.header == 0) {
            found.scale = mul(of_halves(cell.scales + v * 32), splat(l.unit));
            if (kind == INT4Z) found.start = sub(found.start, of_bytes(cell.scales + V * 32 + v * 16));
            if (l.mins) found.min = of_halves(cell.scales + V * 32 + v * 32);
        } else if constexpr (FORM == MINS) {
            found.scale = mul(of_halves(cell.super + v * 32), of_bytes(cell.scales + v * 16));
            const vf min = mul(of_halves(cell.super + V * 32 + v * 32), of_bytes(cell.scales + V * 16 + v * 16));
            found.min = sub(zero(), min);
        } else {
            found.scale = mul(of_halves(cell.super + v * 32), of_signed_bytes(cell.scales + v * 16));
        }
        return found;
    }
};

}  // namespace
