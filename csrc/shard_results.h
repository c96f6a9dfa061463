// Sends the results of shared experts between machines.
//
// All ranks know the rows and routes of all groups, and each adds up its own columns of its group's results. So
// the ranks of the shard that has an expert send its results, f32, to each rank whose columns they have
// computed. They send one result for every choice of that rank's group in the shard, in the order of the
// choices. Every rank knows how much each rank sends to each other one.
#pragma once
#include <algorithm>

#include "world.h"

namespace {

class ShardResults {
  public:
    // Begins to send. results [choices][stride], of all groups' rows with `top_k` choices each: this shard's
    // are filled in, in the columns of this rank's slice. ids [choices]: physical experts, `own` in each shard.
    // Throws RankGone.
    void start(const World& world, int lane, const int32_t* ids, int top_k, int own, int64_t stride,
               const float* results) {
        const NxWorld& w = world.given();
        of_shard_.resize(size_t(w.groups) * w.shards);
        for (std::vector<int32_t>& some : of_shard_) some.clear();
        for (int g = 0; g < w.groups; ++g)
            for (int64_t i = world.place(lane, g, 0) * top_k; i < world.place(lane, g + 1, 0) * top_k; ++i)
                choices(world, g, ids[i] / own).push_back(int32_t(i));
        stride_ = stride;
        out_.resize(size_t(w.size));
        in_.resize(size_t(w.size));
        parcels_.clear();
        for (int r = 0; r < w.size; ++r) {
            if (r == w.rank) continue;
            const Columns to = passed(world, w.rank, r), from = passed(world, r, w.rank);
            const std::vector<int32_t>& computed = choices(world, r / world.each(), world.shard());
            const int64_t size = int64_t(computed.size()) * to.n;
            const int64_t awaited = int64_t(choices(world, world.group(), r / world.slices()).size()) * from.n;
            float *out = grown(out_[size_t(r)], size), *in = grown(in_[size_t(r)], awaited), *at = out;
            if (to.n)
                for (const int32_t choice : computed) {
                    memcpy(at, results + int64_t(choice) * stride + to.first, size_t(to.n) * 4);
                    at += to.n;
                }
            parcels_.add(w.sockets[r], reinterpret_cast<uint8_t*>(out), size * 4, reinterpret_cast<uint8_t*>(in),
                         awaited * 4);
        }
        world.start(parcels_, World::Awaited::RESULTS);
    }

    // Waits until the others' results have arrived in this rank's columns. Throws RankGone.
    void finish(const World& world, float* results) {
        world.finish(parcels_, World::Awaited::RESULTS);
        const NxWorld& w = world.given();
        for (int r = 0; r < w.size; ++r) {
            if (r == w.rank) continue;
            const Columns from = passed(world, r, w.rank);
            if (!from.n) continue;
            const float* at = in_[size_t(r)].data();
            for (const int32_t choice : choices(world, world.group(), r / world.slices())) {
                memcpy(results + int64_t(choice) * stride_ + from.first, at, size_t(from.n) * 4);
                at += from.n;
            }
        }
    }

  private:
    struct Columns {
        int64_t first, n;
    };
    // The columns that `from` has computed of each of its results, and that `to` adds up.
    Columns passed(const World& world, int from, int to) const {
        const int slice = from % world.slices();
        const auto of_slice = [&](int i) { return bound(stride_, PANEL, i, world.slices()); };
        const auto of_rank = [&](int i) { return bound(stride_, PANEL, i, world.each()); };
        const int64_t first = std::max(of_slice(slice), of_rank(to % world.each()));
        const int64_t end = std::min(of_slice(slice + 1), of_rank(to % world.each() + 1));
        return {first, std::max<int64_t>(0, end - first)};
    }

    std::vector<int32_t>& choices(const World& world, int group, int shard) {
        return of_shard_[size_t(group) * world.given().shards + size_t(shard)];
    }

    std::vector<std::vector<int32_t>> of_shard_;  // choices by group and shard
    std::vector<std::vector<float>> out_, in_;    // by rank
    Parcels parcels_;
    int64_t stride_ = 0;
};

}  // namespace
