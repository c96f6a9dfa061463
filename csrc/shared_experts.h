// A MoE layer whose routed experts are shared by all ranks, in three stages. Between the stages, rows and
// results are exchanged (csrc/world.h). While it waits for other ranks, a rank computes its shared expert.
//
//     offer    routes and offers this group's rows; first half of the shared expert
//     compute  this shard's experts, on the rows of all groups that chose them
//     finish   second half of the shared expert; adds up this group's results
//
// On several machines, rows are sent to the ranks of other groups that compute them, and results to the ranks
// that add them up.
#pragma once
#include "group_rows.h"
#include "moe.h"
#include "shard_results.h"
#include "world.h"

namespace {

class SharedExperts {
  public:
    // Sets the lane's arrays, see LaneArrays.
    void set_arrays(const LaneArrays& arrays, int lane) { at_ = arrays, lane_ = lane; }

    // h [rows, stride] f32 and h16 are normed rows. ranks: those of this group, which have the same rows.
    void offer(Pool& pool, const NxFeedForward& f, const World& world, const Ranks& ranks, const float* h,
               const uint16_t* h16, int rows, int64_t stride, Swiglu& shared) {
        f_ = &f, stride_ = stride, rows_ = rows;
        const int k = f.top_k, each = world.each();
        ids_.resize(size_t(rows) * k);
        weights_.resize(size_t(rows) * k);
        if (rows) route(pool, f, h, rows, stride, logits_, ids_.data(), weights_.data());
        count_choices(f, ids_, ranks);
        int64_t sent = 0;
        const bool apart = world.apart(), alone = apart && world.given().groups == 1, stay = alone && !f.fp8_rows;
        const int64_t all = apart ? world.all_rows(lane_) : 0, own = world.place(lane_, world.group(), 0);
        int32_t* ids = at_.ids.room(all * k);
        at_.results.room(all * k * stride);
        uint16_t* offered = at_.rows.room(stay ? 0 : all * stride);
        rows_at_ = stay ? h16 : offered;
        const int first = apart ? 0 : ranks.rank(), step = apart ? 1 : each;  // on one machine, ranks share the copying
        if (!stay)
            each_row(pool, (rows - first + step - 1) / step, [&](int n) {
                const int i = first + n * step;
                expert_row(f, h16 + i * stride, stride, offered + (own + i) * stride);
            });
        for (int i = first; i < rows; i += step) {
            uint64_t seen = uint64_t(1) << world.shard();
            for (int j = 0; j < k; ++j) {
                const int32_t expert = ids_[size_t(i) * k + j], count = f.replica_count[expert];
                const int turn = (world.group() + (world.given().dynamic ? i : 0)) % count;
                const int32_t one = f.replicas[int64_t(expert) * f.most_replicas + turn];
                ids[(own + i) * k + j] = one;
                const uint64_t shard = uint64_t(1) << (one / f.own);
                if (!apart && !(seen & shard)) sent += stride * 2 * world.slices();
                seen |= shard;
            }
        }
        if (!apart) ticket_ = world.arrive(lane_, sent);
        else if (!alone) offered_.start(pool, world, lane_, f, offered, ids, stride);
        if (!rows || !f.shared_gate_up.data) return;
        shared.to.all(rows);
        shared.begin(pool, f.shared_gate_up, f.shared_down, h16, stride,
                     ranks.begin(f.shared_down.n_in, Swiglu::INNER));
        pool.for_each(shared.tasks(), [&](int task, int) { shared.up(task); }, shared.cost(f.shared_gate_up));
        shared.gather(ranks);
    }

    void compute(Pool& pool, const World& world) {
        const NxFeedForward& f = *f_;
        const int k = f.top_k, first = world.shard() * f.own, groups = world.given().groups;
        const bool apart = world.apart();
        if (!apart) world.wait(lane_, ticket_, World::Awaited::ROWS);
        else if (groups > 1) offered_.finish(pool, world);
        routed.to.build(f.own, [&](const auto& choice) {
            for (int g = 0; g < groups; ++g)
                for (int i = 0; i < world.rows(lane_, g); ++i) {
                    const int row = int(world.place(lane_, g, i));
                    const int32_t* ids = at_.ids.data() + int64_t(row) * k;
                    for (int j = 0; j < k; ++j)
                        if (const int own = ids[j] - first; own >= 0 && own < f.own) choice(own, row, row * k + j);
                }
        });
        int64_t foreign = 0;
        for (const int32_t row : routed.to.row) foreign += row / world.given().most_rows != world.group();
        const int64_t width = Swiglu::width(f.down);
        const bool sliced = world.slices() > 1;
        if (sliced && !apart) routed.inner.set_address(uintptr_t(at_.inner.data() + inner_place(world) * width), 0);
        if (routed.to.count()) {
            routed.begin(pool, f.gate_up, f.down, rows_at_, stride_, world.begin(f.down.n_in, Swiglu::INNER));
            pool.for_each(routed.tasks(), [&](int task, int) { routed.up(task); }, routed.cost(f.gate_up));
        }
        if (sliced && apart) world.gather(routed.inner.data(), routed.to.count(), width, f.down.n_in, Swiglu::INNER);
        if (sliced && !apart) world.meet(lane_, World::Awaited::SLICES);
        if (routed.to.count()) {
            routed.turn(pool);
            float* results = at_.results.data() + world.begin(stride_, PANEL);
            pool.for_each(panels(f.down), [&](int p, int) { routed.down(p, results + p * PANEL, stride_); },
                          routed.cost(f.down));
        }
        if (apart) sent_.start(world, lane_, at_.ids.data(), k, f.own, stride_, at_.results.data());
        else ticket_ = world.arrive(lane_, foreign * f.down.n_out * 4);
    }

    // y [rows, stride] f32 <- this rank's columns, `columns` in all.
    void finish(Pool& pool, const World& world, const Ranks& ranks, Swiglu& shared, float* y, int columns) {
        const NxFeedForward& f = *f_;
        const bool is_shared = rows_ && f.shared_gate_up.data;
        if (is_shared) {
            if (beside_.size() < size_t(rows_) * stride_) beside_.resize(size_t(rows_) * stride_);
            ranks.meet();  // `offer` computes the inner columns after the world's meeting
            shared.turn(pool);
            pool.for_each(panels(f.shared_down), [&](int p, int) {
                shared.down(p, beside_.data() + p * PANEL, stride_);
            }, shared.cost(f.shared_down));
        }
        if (world.apart()) sent_.finish(world, at_.results.data());
        else world.wait(lane_, ticket_, World::Awaited::RESULTS);
        if (!rows_) return;
        const int k = f.top_k;
        const int64_t first = ranks.begin(stride_, PANEL);
        const float* results = at_.results.data() + world.place(lane_, world.group(), 0) * k * stride_ + first;
        each_row(pool, rows_, [&](int i) {
            combine(results + int64_t(i) * k * stride_, stride_, weights_.data() + int64_t(i) * k, k,
                    is_shared ? beside_.data() + i * stride_ : nullptr, stride_, 1, columns, y + i * stride_, stride_);
        });
    }

    Swiglu routed;

  private:
    // The shards' inner columns are one after another.
    int64_t inner_place(const World& world) const {
        return int64_t(world.shard()) * world.given().groups * world.given().most_rows * f_->top_k;
    }

    LaneArrays at_;
    const uint16_t* rows_at_ = nullptr;
    GroupRows offered_;
    ShardResults sent_;
    int lane_ = 0;
    const NxFeedForward* f_ = nullptr;
    int64_t stride_ = 0;
    int rows_ = 0;
    World::Ticket ticket_{};
    std::vector<float> logits_, weights_, beside_;
    std::vector<int32_t> ids_;
};

}  // namespace
