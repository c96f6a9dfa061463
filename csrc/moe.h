// DeepSeek's feed-forward blocks (V3: arXiv 2412.19437, 2.1.2): routed experts in steps with plain arrays
// between them, and the shared expert. The dense block is a shared expert alone.
//
//     route     rows -> ids, weights [rows][top_k]
//     Dispatch  ids -> the rows of each expert
//     Swiglu    -> a result for each choice, [rows][top_k], f32
//     combine   -> for each row, its results times their weights, summed in the order of its choices
//
// An expert's weights are read once for any number of rows. Its results do not depend on the other rows or on
// the thread that computes them. So choices can be made in one place and computed in others.
#pragma once
#include <algorithm>

#include "fp8_rows.h"
#include "linear.h"
#include "norm.h"
#include "ranks.h"

extern "C" {
struct NxFeedForward {
    NxWeight router;    // f32 [E, C]; data null: no routed experts
    const float* bias;  // [E]
    NxWeight gate_up, down;                // of all experts, one after another; gate and up interleaved by 16
    NxWeight shared_gate_up, shared_down;  // data null: no shared expert
    int32_t experts, groups, top_groups, top_k, normalize;
    int32_t softmax;    // 1: V2's router; 0: V3's
    int32_t fp8_rows;   // 1: routed experts read rows rounded to e4m3 (csrc/fp8_rows.h)
    float scale;
    // If ranks share the experts (csrc/world.h), gate_up and down have some of them, replicas included.
    int32_t own;                // experts in gate_up and down; 0: experts are not shared
    int32_t most_replicas;
    const int32_t* replicas;    // [E, most_replicas]: physical experts of each, counted over all shards
    const int32_t* replica_count;  // [E]
    int64_t* counts;            // [E]: increased each time an expert is chosen; null: not counted
};
}

namespace {

struct Routes {  // the choices of one row
    int32_t* ids;
    float* weights;
};

// sigmoid, softmax: logits [E] <- their sigmoid or softmax. Memory beyond E has to be readable up to a whole
// vector.
inline void sigmoid(float* logits, int e_count) {
    for (int e = 0; e < e_count; e += 16) {
        alignas(64) float s[16];
        store(s, div(splat(1.f), add(splat(1.f), exp(sub(zero(), load(logits + e))))));
        for (int i = 0; i < 16 && e + i < e_count; ++i) logits[e + i] = s[i];
    }
}
inline void softmax(float* logits, int e_count) {
    float most = -INFINITY, total = 0.f;
    for (int e = 0; e < e_count; ++e) most = logits[e] > most ? logits[e] : most;
    for (int e = 0; e < e_count; e += 16) {
        alignas(64) float s[16];
        store(s, exp(sub(load(logits + e), splat(most))));
        for (int i = 0; i < 16 && e + i < e_count; ++i) total += logits[e + i] = s[i];
    }
    for (int e = 0; e < e_count; ++e) logits[e] /= total;
}

// Chooses a row's experts. scores [E]: the router's logits, overwritten. The best groups are those with the
// largest sum of their two best biased scores (V2: the best score). Within these, the best experts are chosen;
// of equal ones the lowest number. Weights are the scores without bias.
inline void choose_experts(const NxFeedForward& f, float* scores, Routes to) {
    constexpr int MOST = 1024;
    float biased[MOST];
    const int e_count = f.experts, per = e_count / f.groups;
    if (f.softmax) softmax(scores, e_count);
    else sigmoid(scores, e_count);
    for (int e = 0; e < e_count; ++e) biased[e] = scores[e] + f.bias[e];
    if (f.top_groups < f.groups) {
        float best[MOST];
        for (int g = 0; g < f.groups; ++g) {
            float first = -INFINITY, second = -INFINITY;
            for (int i = g * per; i < (g + 1) * per; ++i) {
                if (biased[i] > first) { second = first; first = biased[i]; }
                else if (biased[i] > second) second = biased[i];
            }
            best[g] = f.softmax ? first : first + second;
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

// ids, weights [rows][top_k] <- the routes of h [rows, stride] f32. logits: a buffer.
inline void route(Pool& pool, const NxFeedForward& f, const float* h, int rows, int64_t stride,
                  std::vector<float>& logits, int32_t* ids, float* weights) {
    const int64_t wide = f.router.n_out;
    const int64_t room = rows * wide + 16;  // the last row is read in whole vectors too
    if (int64_t(logits.size()) < room) logits.resize(size_t(room));
    float* scores = logits.data();
    product_all(pool, {reinterpret_cast<const uint32_t*>(h), stride}, rows, f.router,
                [&](int i, int n0, int n, const float* v) { put(scores + i * wide + n0, v, n); });
    each_row(pool, rows, [&](int i) {
        choose_experts(f, scores + i * wide, {ids + int64_t(i) * f.top_k, weights + int64_t(i) * f.top_k});
    });
}

// Counts on one rank only of those that have the same rows.
inline void count_choices(const NxFeedForward& f, const std::vector<int32_t>& ids, const Ranks& ranks) {
    if (!f.counts || ranks.rank()) return;
    for (const int32_t id : ids) ++f.counts[id];
}

// to [stride] <- the row h16 [stride] as routed experts read it.
inline void expert_row(const NxFeedForward& f, const uint16_t* h16, int64_t stride, uint16_t* to) {
    const int64_t n = f.fp8_rows ? f.router.n_in : stride;
    if (f.fp8_rows) fp8_round(h16, n, to);
    else memcpy(to, h16, size_t(n) * 2);
    std::fill(to + n, to + stride, uint16_t(0));
}
// The same for rows [rows, stride]. Returns h16 itself, or rounded rows in `room`.
inline const uint16_t* expert_rows(Pool& pool, const NxFeedForward& f, const uint16_t* h16, int rows, int64_t stride,
                                   std::vector<uint16_t>& room) {
    if (!f.fp8_rows) return h16;
    uint16_t* to = grown(room, rows * stride);
    each_row(pool, rows, [&](int i) { expert_row(f, h16 + i * stride, stride, to + i * stride); });
    return to;
}

// The choices, sorted by expert, for experts that have at least one. Choices begin[i] .. begin[i + 1] are those
// of expert used[i]; each has a row and a number among all choices, row * top_k + k.
struct Dispatch {
    std::vector<int32_t> used, begin, row, choice;

    // ids [count][top_k]; negative ones are not computed here.
    void build(const int32_t* ids, int count, int top_k, int experts) {
        build(experts, [&](const auto& choice) {
            for (int i = 0; i < count * top_k; ++i) if (ids[i] >= 0) choice(ids[i], i / top_k, i);
        });
    }
    // each(choice) calls choice(expert, row, number of the choice) for each choice.
    template <class Each> void build(int experts, const Each& each) {
        std::vector<int32_t>& size = sizes_;
        size.assign(size_t(experts) + 1, 0);
        each([&](int expert, int, int) { ++size[expert + 1]; });
        used.clear();
        begin.clear();
        for (int e = 0; e < experts; ++e) {
            if (size[e + 1]) { used.push_back(e); begin.push_back(size[e]); }
            size[e + 1] += size[e];
        }
        begin.push_back(size[experts]);
        row.resize(size_t(size[experts]));
        choice.resize(row.size());
        each([&](int expert, int of, int number) {
            const int at = size[expert]++;
            row[at] = of;
            choice[at] = number;
        });
    }

    // Every row once, for a block with one expert. row and choice stay empty.
    void all(int rows) {
        used.assign(1, 0);
        begin.assign({0, rows});
        row.clear();
        choice.clear();
    }
    int count() const { return begin.back(); }

  private:
    std::vector<int32_t> sizes_;
};

// y <- silu(gate) * up, n / 2 numbers. values: n <= 64 floats, groups of 16 of gate and up in turns.
inline void gated(const float* values, int n, uint16_t* y) {
    for (int i = 0; i < n / 32; ++i) store_bf16(y + 16 * i, mul(silu(load(values + 32 * i)), load(values + 32 * i + 16)));
}

// The experts of one block on the rows dispatched to them, in two halves: up() for the panels of gate_up, then
// down(), in which a panel has a column of 64 outputs. Inlined for every use: when several uses shared the
// code, the loops over rows were 1 to 2 % slower.
class Swiglu {
  public:
    Dispatch to;

    // column: the first inner column that gate_up computes here; other ranks compute the others.
    void begin(Pool& pool, const NxWeight& gate_up, const NxWeight& down, const uint16_t* h16, int64_t stride,
               int64_t column = 0) {
        gate_up_ = &gate_up, down_ = &down;
        width_ = width(down);
        column_ = column;
        inner.room(to.count() * width_);
        take(pool, {reinterpret_cast<const uint32_t*>(h16), stride / 2, to.row.empty() ? nullptr : to.row.data()},
             gate_up);
    }
    int tasks() const { return int(to.used.size()) * panels(*gate_up_); }
    [[gnu::always_inline]] void up(int task) {
        const int ups = panels(*gate_up_), e = task / ups;
        uint16_t* own = inner.data() + column_;
        const int64_t width = width_;
        rows_by_panel(in_, to.begin[e], to.begin[e + 1], *gate_up_, panel_of(*gate_up_, task % ups, to.used[e]),
                      [&](int i, int n0, int n, const float* v) { gated(v, n, own + i * width + n0 / 2); });
    }
    void gather(const Ranks& ranks) { ranks.gather(inner.data(), to.count(), width_, down_->n_in, INNER); }
    void turn(Pool& pool) {
        take(pool, {reinterpret_cast<const uint32_t*>(inner.data()), width_ / 2}, *down_);
    }
    // results [choices, stride] f32 <- the outputs of panel p.
    [[gnu::always_inline]] void down(int p, float* results, int64_t stride) const {
        const int32_t* choice = to.choice.empty() ? nullptr : to.choice.data();
        for (size_t e = 0; e < to.used.size(); ++e)
            rows_by_panel(in_, to.begin[e], to.begin[e + 1], *down_, panel_of(*down_, p, to.used[e]),
                          [&](int i, int, int n, const float* v) {
                              put(results + (choice ? choice[i] : i) * stride, v, n);
                          });
    }
    // Cost of all tasks with this weight of the block, for Pool::for_each: one read for each pass over an
    // expert.
    int64_t cost(const NxWeight& w) const {
        const int64_t pass = pass_rows(w), passes = (to.count() + pass - 1) / pass;
        return std::max<int64_t>(passes, int64_t(to.used.size())) * product_cost(w, 1);
    }

    static int64_t width(const NxWeight& down) { return (int64_t(down.n_in) + 31) / 32 * 32; }

    Shared<uint16_t> inner;  // [rows, width]

    static constexpr int INNER = PANEL / 2;  // inner columns in a panel of gate_up

  private:
    void take(Pool& pool, const Rows& rows, const NxWeight& w) {
        in_.take(pool, rows, to.begin.data(), int(to.used.size()), w);
    }

    const NxWeight *gate_up_ = nullptr, *down_ = nullptr;
    Inputs in_;  // rows of the half that is computed now
    int64_t width_ = 0, column_ = 0;
};

// y [rows, y_stride] <- n columns of: results [rows][top_k][stride] times weights [rows][top_k], summed, plus
// shared [rows, shared_stride] if it is not null.
[[gnu::always_inline]] inline void combine(const float* results, int64_t stride, const float* weights, int top_k,
                                           const float* shared, int64_t shared_stride, int rows, int n, float* y,
                                           int64_t y_stride) {
    for (int i = 0; i < rows; ++i)
        for (int c = 0; c < n; c += 16) {
            vf sum = zero();
            for (int j = 0; j < top_k; ++j)
                sum = fma(load(results + (int64_t(i) * top_k + j) * stride + c), splat(weights[i * top_k + j]), sum);
            if (shared) sum = add(sum, load(shared + i * shared_stride + c));
            store(y + i * y_stride + c, sum);
        }
}

struct FeedForwardBuffers {
    std::vector<float> logits, weights;
    std::vector<int32_t> ids;
    Swiglu routed, shared;
    std::vector<std::vector<float>> columns;  // buffers for results, one for each thread
    std::vector<uint16_t> rounded;            // rows, in e4m3's precision
};

// y [rows, stride] f32 <- feed-forward of the normed rows h, in f32 and bf16. It does all steps: routed and
// shared experts are in one loop, and results are combined column by column while they are in the cache. ranks:
// y begins at this rank's columns.
inline void feed_forward(Pool& pool, const NxFeedForward& f, const float* h, const uint16_t* h16, int rows,
                         int64_t stride, float* y, FeedForwardBuffers& b, const Ranks& ranks = {}) {
    const bool is_routed = f.router.data != nullptr, is_shared = f.shared_gate_up.data != nullptr;
    const int k = is_routed ? f.top_k : 0;
    Swiglu &routed = b.routed, &shared = b.shared;
    int tasks = 0;
    int64_t up_cost = 0, down_cost = 0;
    if (is_routed) {
        b.weights.resize(size_t(rows) * k);
        b.ids.resize(size_t(rows) * k);
        route(pool, f, h, rows, stride, b.logits, b.ids.data(), b.weights.data());
        count_choices(f, b.ids, ranks);
        routed.to.build(b.ids.data(), rows, k, f.experts);
        const uint16_t* taken = expert_rows(pool, f, h16, rows, stride, b.rounded);
        routed.begin(pool, f.gate_up, f.down, taken, stride, ranks.begin(f.down.n_in, Swiglu::INNER));
        tasks = routed.tasks(), up_cost = routed.cost(f.gate_up), down_cost = routed.cost(f.down);
    }
    if (is_shared) {
        shared.to.all(rows);
        shared.begin(pool, f.shared_gate_up, f.shared_down, h16, stride,
                     ranks.begin(f.shared_down.n_in, Swiglu::INNER));
        up_cost += shared.cost(f.shared_gate_up), down_cost += shared.cost(f.shared_down);
    }
    pool.for_each(tasks + (is_shared ? shared.tasks() : 0), [&](int task, int) {
        task < tasks ? routed.up(task) : shared.up(task - tasks);
    }, up_cost);
    if (is_routed) routed.gather(ranks);
    if (is_shared) shared.gather(ranks);
    ranks.meet();
    if (is_routed) routed.turn(pool);
    if (is_shared) shared.turn(pool);
    const NxWeight& any = is_routed ? f.down : f.shared_down;
    b.columns.resize(size_t(pool.threads()));
    pool.for_each(panels(any), [&](int p, int thread) {
        std::vector<float>& column = b.columns[thread];
        if (int64_t(column.size()) < int64_t(rows) * (k + 1) * PANEL) column.resize(size_t(rows) * (k + 1) * PANEL);
        float* beside = is_shared ? column.data() + int64_t(rows) * k * PANEL : nullptr;
        if (is_routed) routed.down(p, column.data(), PANEL);
        if (is_shared) shared.down(p, beside, PANEL);
        const int first = p * PANEL, n = any.n_out - first < PANEL ? any.n_out - first : PANEL;
        combine(column.data(), PANEL, b.weights.data(), k, beside, PANEL, rows, n, y + first, stride);
    }, down_cost);
}

// results [rows][top_k][stride] f32 <- the results of the experts for rows h16 [rows, stride] and choices ids
// [rows][top_k]. Results of negative ids are not changed.
inline void experts(Pool& pool, const NxFeedForward& f, const uint16_t* h16, const int32_t* ids, int rows,
                    int64_t stride, float* results) {
    Swiglu block;
    std::vector<uint16_t> room;
    block.to.build(ids, rows, f.top_k, f.experts);
    block.begin(pool, f.gate_up, f.down, expert_rows(pool, f, h16, rows, stride, room), stride);
    pool.for_each(block.tasks(), [&](int task, int) { block.up(task); }, block.cost(f.gate_up));
    block.turn(pool);
    pool.for_each(panels(f.down), [&](int p, int) { block.down(p, results + p * PANEL, stride); }, block.cost(f.down));
}

}  // namespace
