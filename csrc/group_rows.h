// Rows on their way to the experts of other groups' machines.
//
// Ranks of a group have the same rows. So a rank sends its group's rows, bf16, and the experts that they chose to one
// rank of each other group: the one with its own number there. Then all ranks have the rows of all groups.
#pragma once
#include "world.h"

namespace {

class GroupRows {
  public:
    // rows [all groups' rows][stride], ids [all groups' rows][top_k]: those of this group are there. Throws RankGone.
    void start(const World& world, int lane, const uint16_t* rows, const int32_t* ids, int64_t stride, int top_k) {
        const NxWorld& w = world.given();
        const int64_t own = world.rows(lane, world.group()), at = world.place(lane, world.group(), 0);
        row_ = stride * 2, ids_ = int64_t(top_k) * 4;
        uint8_t* out = grown(out_, own * (row_ + ids_));
        if (own) {
            memcpy(out, rows + at * stride, size_t(own * row_));
            memcpy(out + own * row_, ids + at * top_k, size_t(own * ids_));
        }
        in_.resize(size_t(w.groups));
        parcels_.clear();
        for (int g = 0; g < w.groups; ++g) {
            if (g == world.group()) continue;
            const int64_t awaited = world.rows(lane, g) * (row_ + ids_);
            parcels_.add(w.sockets[g * world.each() + w.rank % world.each()], out, own * (row_ + ids_),
                         grown(in_[size_t(g)], awaited), awaited);
        }
        world.start(parcels_);
    }

    // Those of the other groups are there too. Throws RankGone.
    void finish(const World& world, int lane, uint16_t* rows, int32_t* ids) {
        world.finish(parcels_);
        for (int g = 0; g < world.given().groups; ++g) {
            const int64_t n = world.rows(lane, g), at = world.place(lane, g, 0);
            if (g == world.group() || !n) continue;
            const uint8_t* in = in_[size_t(g)].data();
            memcpy(rows + at * row_ / 2, in, size_t(n * row_));
            memcpy(ids + at * ids_ / 4, in + n * row_, size_t(n * ids_));
        }
    }

  private:
    std::vector<uint8_t> out_;
    std::vector<std::vector<uint8_t>> in_;  // by group
    Parcels parcels_;
    int64_t row_ = 0, ids_ = 0;  // bytes of each row
};

}  // namespace
