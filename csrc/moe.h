// DeepSeek-V3's feed-forward blocks (arXiv 2412.19437, 2.1.2): the router, routed and shared experts, and the
// dense block, which is a shared expert alone. An expert's weights are read once however many rows want it.
#pragma once
#include <algorithm>

#include "linear.h"
#include "norm.h"

extern "C" {
struct NxFeedForward {
    NxWeight gate;      // f32 [E, C]; data null: no routed experts
    const float* bias;  // [E]
    NxWeight gate_up, down;                // of all experts, one after another; gate and up interleaved by 16
    NxWeight shared_gate_up, shared_down;  // data null: none
    int32_t experts, groups, top_groups, top_k, normalize;
    float scale;
};
}

namespace {

struct Router {  // what one row chose
    int32_t* ids;
    float* weights;
};

// scores [E]: the router's logits, written over. Best groups by the sum of their two best biased scores, then
// the best experts in them; equal ones by number. Weights come from the scores without bias.
inline void choose_experts(const NxFeedForward& f, float* scores, Router to) {
    constexpr int MOST = 1024;
    float biased[MOST];
    const int e_count = f.experts, per = e_count / f.groups;
    for (int e = 0; e < e_count; e += 16) {
        alignas(64) float s[16];
        store(s, div(splat(1.f), add(splat(1.f), exp(sub(zero(), load(scores + e))))));
        for (int i = 0; i < 16 && e + i < e_count; ++i) {
            scores[e + i] = s[i];
            biased[e + i] = s[i] + f.bias[e + i];
        }
    }
    if (f.top_groups < f.groups) {
        float best[MOST];
        for (int g = 0; g < f.groups; ++g) {
            float first = -INFINITY, second = -INFINITY;
            for (int i = g * per; i < (g + 1) * per; ++i) {
                if (biased[i] > first) { second = first; first = biased[i]; }
                else if (biased[i] > second) second = biased[i];
            }
            best[g] = first + second;
        }
        bool open[MOST] = {};
        for (int k = 0; k < f.top_groups; ++k) {
            int at = -1;
            for (int g = 0; g < f.groups; ++g) if (!open[g] && (at < 0 || best[g] > best[at])) at = g;
            open[at] = true;
        }
        for (int e = 0; e < e_count; ++e) if (!open[e / per]) biased[e] = -INFINITY;
    }
    float total = 0.f;
    bool taken[MOST] = {};
    for (int k = 0; k < f.top_k; ++k) {
        int at = -1;
        for (int e = 0; e < e_count; ++e) if (!taken[e] && (at < 0 || biased[e] > biased[at])) at = e;
        taken[at] = true;
        to.ids[k] = at;
        to.weights[k] = scores[at];
        total += scores[at];
    }
    const float by = (f.normalize ? 1.f / (total + 1e-20f) : 1.f) * f.scale;
    for (int k = 0; k < f.top_k; ++k) to.weights[k] *= by;
}

// The rows of every expert that has some; expert number `experts` is the shared one.
struct Assignment {
    std::vector<int32_t> used, begin, rows;  // of expert used[i]: rows[begin[i] .. begin[i + 1])
    std::vector<int32_t> place;              // [rows][top_k]: where in `rows` that choice stands

    void build(const int32_t* ids, int count, int top_k, int experts) {
        std::vector<int32_t>& size = sizes_;
        size.assign(size_t(experts) + 1, 0);
        for (int i = 0; i < count * top_k; ++i) ++size[ids[i] + 1];
        used.clear();
        begin.clear();
        for (int e = 0; e < experts; ++e) {
            if (size[e + 1]) { used.push_back(e); begin.push_back(size[e]); }
            size[e + 1] += size[e];
        }
        begin.push_back(count * top_k);
        rows.resize(size_t(count) * top_k);
        place.resize(rows.size());
        for (int i = 0; i < count * top_k; ++i) {
            const int at = size[ids[i]]++;
            rows[at] = i / top_k;
            place[i] = at;
        }
    }

  private:
    std::vector<int32_t> sizes_;
};

// values: 64 floats, groups of 16 of gate and up in turns -> silu(gate) * up, half as many.
inline void gated(const float* values, int n, uint16_t* y) {
    for (int i = 0; i < n / 32; ++i) store_bf16(y + 16 * i, mul(silu(load(values + 32 * i)), load(values + 32 * i + 16)));
}

struct FeedForwardBuffers {
    Inputs routed_rows, shared_rows;  // of the loop at hand
    std::vector<float> logits, weights;
    std::vector<int32_t> ids;
    std::vector<uint16_t> inner, shared;
    std::vector<std::vector<float>> partial;  // one for each thread
    Assignment assignment;
};

inline int64_t inner_width(const NxWeight& down) { return (down.n_in + 31) / 32 * 32; }

// y [rows, stride] f32 <- feed-forward of the normed rows h, in f32 and bf16.
inline void feed_forward(Pool& pool, const NxFeedForward& f, const float* h, const uint16_t* h16, int rows,
                         int64_t stride, float* y, FeedForwardBuffers& b) {
    const bool routed = f.gate.data != nullptr, shared = f.shared_gate_up.data != nullptr;
    const int k = routed ? f.top_k : 0;
    Assignment& a = b.assignment;
    if (routed) {
        const int64_t wide = f.gate.n_out;
        b.logits.resize(size_t(rows * wide));
        b.weights.resize(size_t(rows) * k);
        b.ids.resize(size_t(rows) * k);
        float* logits = b.logits.data();
        product_all(pool, {reinterpret_cast<const uint32_t*>(h), stride}, rows, f.gate,
                    [&](int i, int n0, int n, const float* v) { put(logits + i * wide + n0, v, n); });
        each_row(pool, rows, [&](int i) {
            choose_experts(f, logits + i * wide, {b.ids.data() + int64_t(i) * k, b.weights.data() + int64_t(i) * k});
        });
        a.build(b.ids.data(), rows, k, f.experts);
    } else {
        a.build(nullptr, 0, 0, 0);
    }
    const int64_t inner = routed ? inner_width(f.down) : 0, shared_inner = shared ? inner_width(f.shared_down) : 0;
    if (int64_t(b.inner.size()) < rows * k * inner) b.inner.resize(size_t(rows * k * inner));
    if (int64_t(b.shared.size()) < rows * shared_inner) b.shared.resize(size_t(rows * shared_inner));

    const int ups = routed ? panels(f.gate_up) : 0, shared_ups = shared ? panels(f.shared_gate_up) : 0;
    const int used = int(a.used.size());
    const int32_t everything[2] = {0, rows};
    // Passes over an expert.
    const int64_t busy = std::max<int64_t>(used, routed ? int64_t(rows) * k / pass_rows(f.gate_up) : 0);
    const uint32_t* words = reinterpret_cast<const uint32_t*>(h16);
    if (routed) b.routed_rows.take(pool, {words, stride / 2, a.rows.data()}, a.begin.data(), used, f.gate_up);
    if (shared) b.shared_rows.take(pool, {words, stride / 2}, everything, 1, f.shared_gate_up);
    pool.for_each(used * ups + shared_ups, [&](int task, int) {
        if (task >= used * ups) {
            rows_by_panel(b.shared_rows, 0, rows, f.shared_gate_up, panel_of(f.shared_gate_up, task - used * ups),
                          [&](int i, int n0, int n, const float* v) {
                              gated(v, n, b.shared.data() + i * shared_inner + n0 / 2);
                          });
            return;
        }
        const int e = task / ups;
        rows_by_panel(b.routed_rows, a.begin[e], a.begin[e + 1], f.gate_up, panel_of(f.gate_up, task % ups, a.used[e]),
                      [&](int i, int n0, int n, const float* v) {
                          gated(v, n, b.inner.data() + i * inner + n0 / 2);
                      });
    }, busy * (routed ? product_cost(f.gate_up, 1) : 0) + (shared ? product_cost(f.shared_gate_up, rows) : 0));

    const auto as_words = [](const std::vector<uint16_t>& v) { return reinterpret_cast<const uint32_t*>(v.data()); };
    if (routed) b.routed_rows.take(pool, {as_words(b.inner), inner / 2}, a.begin.data(), used, f.down);
    if (shared) b.shared_rows.take(pool, {as_words(b.shared), shared_inner / 2}, everything, 1, f.shared_down);
    const NxWeight& any = routed ? f.down : f.shared_down;
    b.partial.resize(size_t(pool.threads()));
    pool.for_each(panels(any), [&](int p, int thread) {
        std::vector<float>& part = b.partial[thread];
        if (int64_t(part.size()) < int64_t(rows) * (k + 1) * PANEL) part.resize(size_t(rows) * (k + 1) * PANEL);
        for (int e = 0; e < used; ++e)
            rows_by_panel(b.routed_rows, a.begin[e], a.begin[e + 1], f.down, panel_of(f.down, p, a.used[e]),
                          [&](int i, int, int n, const float* v) { put(part.data() + int64_t(i) * PANEL, v, n); });
        float* mine = part.data() + int64_t(rows) * k * PANEL;
        if (shared)
            rows_by_panel(b.shared_rows, 0, rows, f.shared_down, panel_of(f.shared_down, p),
                          [&](int i, int, int n, const float* v) { put(mine + int64_t(i) * PANEL, v, n); });
        const int first = p * PANEL, n = any.n_out - first < PANEL ? any.n_out - first : PANEL;
        for (int i = 0; i < rows; ++i)
            for (int c = 0; c < n; c += 16) {
                vf sum = zero();
                for (int j = 0; j < k; ++j)
                    sum = fma(load(part.data() + int64_t(a.place[i * k + j]) * PANEL + c),
                              splat(b.weights[i * k + j]), sum);
                if (shared) sum = add(sum, load(mine + int64_t(i) * PANEL + c));
                store(y + i * stride + first + c, sum);
            }
    }, busy * (routed ? product_cost(f.down, 1) : 0) + (shared ? product_cost(f.shared_down, rows) : 0));
}

}  // namespace
