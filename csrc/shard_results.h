// Results of shared experts on their way between machines.
//
// All ranks have the same rows and the same routes, and each adds up its own columns of every result. So the ranks of
// the shard that has an expert send its results, f32, to all ranks whose columns they have computed: of every choice
// in that shard, in the order of the choices. Everybody knows who sends how much to whom.
#pragma once
#include <algorithm>

#include "world.h"

namespace {

class ShardResults {
  public:
    // results [choices][stride]: this shard's are there, the columns of this rank's slice. ids [choices]: physical
    // experts, of which each shard has `own`. Throws RankGone.
    void start(const World& world, const int32_t* ids, int choices, int own, int64_t stride, const float* results) {
        const NxWorld& w = world.given();
        of_shard_.resize(size_t(w.shards));
        for (std::vector<int32_t>& some : of_shard_) some.clear();
        for (int i = 0; i < choices; ++i) of_shard_[size_t(ids[i] / own)].push_back(i);
        stride_ = stride;
        out_.resize(size_t(w.size));
        in_.resize(size_t(w.size));
        parcels_.clear();
        for (int r = 0; r < w.size; ++r) {
            if (r == w.rank) continue;
            const Columns to = passed(world, w.rank, r), from = passed(world, r, w.rank);
            const std::vector<int32_t>& own_choices = of_shard_[size_t(world.shard())];
            const int64_t size = int64_t(own_choices.size()) * to.n;
            const int64_t awaited = int64_t(of_shard_[size_t(r / world.slices())].size()) * from.n;
            float *out = grown(out_[size_t(r)], size), *in = grown(in_[size_t(r)], awaited), *at = out;
            if (to.n)
                for (const int32_t choice : own_choices) {
                    memcpy(at, results + choice * stride + to.first, size_t(to.n) * 4);
                    at += to.n;
                }
            parcels_.add(w.sockets[r], reinterpret_cast<uint8_t*>(out), size * 4, reinterpret_cast<uint8_t*>(in),
                         awaited * 4);
        }
        world.start(parcels_);
    }

    // The others' results are there too, of this rank's columns. Throws RankGone.
    void finish(const World& world, float* results) {
        world.finish(parcels_);
        const NxWorld& w = world.given();
        for (int r = 0; r < w.size; ++r) {
            if (r == w.rank) continue;
            const Columns from = passed(world, r, w.rank);
            if (!from.n) continue;
            const float* at = in_[size_t(r)].data();
            for (const int32_t choice : of_shard_[size_t(r / world.slices())]) {
                memcpy(results + choice * stride_ + from.first, at, size_t(from.n) * 4);
                at += from.n;
            }
        }
    }

  private:
    struct Columns {
        int64_t first, n;
    };
    // What `from` has computed of each of its results, and `to` adds up.
    Columns passed(const World& world, int from, int to) const {
        const int slice = from % world.slices(), size = world.size();
        const auto of_slice = [&](int i) { return bound(stride_, PANEL, i, world.slices()); };
        const auto of_rank = [&](int i) { return bound(stride_, PANEL, i, size); };
        const int64_t first = std::max(of_slice(slice), of_rank(to));
        const int64_t end = std::min(of_slice(slice + 1), of_rank(to + 1));
        return {first, std::max<int64_t>(0, end - first)};
    }

    std::vector<std::vector<int32_t>> of_shard_;  // choices
    std::vector<std::vector<float>> out_, in_;    // by rank
    Parcels parcels_;
    int64_t stride_ = 0;
};

}  // namespace
