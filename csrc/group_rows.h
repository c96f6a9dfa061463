// Sends rows to the experts on the machines of other groups.
//
// All ranks of a group have the same rows. So a rank sends to one rank of each other group: the one with the
// same number there. First it sends the experts that each row of its group chose. They tell the receiver what
// follows: the rows that chose an expert of the receiver's shard, in bf16, or packed as in csrc/fp8_rows.h.
#pragma once
#include "moe.h"
#include "world.h"

namespace {

class GroupRows {
  public:
    // Begins to send. rows [all groups' rows][stride], as experts read them. ids [all groups' rows][top_k]:
    // physical experts. The entries of this group are filled in. Throws RankGone.
    void start(Pool& pool, const World& world, int lane, const NxFeedForward& f, uint16_t* rows, int32_t* ids,
               int64_t stride) {
        const NxWorld& w = world.given();
        f_ = &f, rows_ = rows, ids_ = ids, stride_ = stride, shard_ = world.shard();
        row_bytes_ = f.fp8_rows ? fp8_row_bytes(f.router.n_in) : stride * 2;
        const int64_t own = world.rows(lane, world.group()), at = world.place(lane, world.group(), 0);
        const int64_t choices = int64_t(f.top_k) * 4;  // bytes of a row's choices
        const uint8_t* packed = pack(pool, at, own);
        out_.resize(size_t(w.groups));
        in_.resize(size_t(w.groups));
        parcels_.clear();
        for (int g = 0; g < w.groups; ++g) {
            if (g == world.group()) continue;
            const int32_t to = g * world.each() + w.rank % world.each(), shard = to / world.slices();
            uint8_t *out = grown(out_[size_t(g)], own * (choices + row_bytes_)), *end = out + own * choices;
            if (own) memcpy(out, ids + at * f.top_k, size_t(own * choices));
            for (int64_t i = 0; i < own; ++i)
                if (chose(at + i, shard)) {
                    memcpy(end, packed + i * row_bytes_, size_t(row_bytes_));
                    end += row_bytes_;
                }
            Incoming& in = in_[size_t(g)];
            in.place = world.place(lane, g, 0), in.count = world.rows(lane, g);
            parcels_.add(w.sockets[to], out, end - out, reinterpret_cast<uint8_t*>(ids + in.place * f.top_k),
                         in.count * choices);
            parcels_.links.back().follows = in.count > 0;
        }
        parcels_.rest = [this, group = world.group()](int link) {
            return following(in_[size_t(link < group ? link : link + 1)]);
        };
        world.start(parcels_, World::Awaited::ROWS);
    }

    // Waits until the other groups' choices have arrived in ids, and in rows those of their rows that this
    // rank's shard computes. Throws RankGone.
    void finish(Pool& pool, const World& world) {
        world.finish(parcels_, World::Awaited::ROWS);
        arrived_.clear();
        for (int g = 0; g < world.given().groups; ++g) {
            if (g == world.group()) continue;
            const Incoming& in = in_[size_t(g)];
            const uint8_t* from = in.rows.data();
            for (int64_t i = in.place; i < in.place + in.count; ++i)
                if (chose(i, shard_)) {
                    arrived_.push_back({from, i});
                    from += row_bytes_;
                }
        }
        each_row(pool, int(arrived_.size()), [&](int i) { unpack(arrived_[size_t(i)]); });
    }

  private:
    struct Incoming {  // from another group; its first row is row `place` of all
        int64_t place, count;
        std::vector<uint8_t> rows;
    };
    struct Arrived {
        const uint8_t* from;
        int64_t row;
    };

    bool chose(int64_t row, int32_t shard) const {
        const int32_t* ids = ids_ + row * f_->top_k;
        return std::any_of(ids, ids + f_->top_k, [&](int32_t id) { return id / f_->own == shard; });
    }

    // Rows from `at` on, in the form in which they are sent.
    const uint8_t* pack(Pool& pool, int64_t at, int64_t count) {
        if (!f_->fp8_rows) return reinterpret_cast<const uint8_t*>(rows_ + at * stride_);
        uint8_t* to = grown(packed_, count * row_bytes_);
        each_row(pool, int(count), [&](int i) {
            fp8_encode(rows_ + (at + i) * stride_, f_->router.n_in, to + i * row_bytes_);
        });
        return to;
    }
    void unpack(const Arrived& arrived) {
        uint16_t* to = rows_ + arrived.row * stride_;
        if (!f_->fp8_rows) {
            memcpy(to, arrived.from, size_t(row_bytes_));
            return;
        }
        const int64_t n = f_->router.n_in;
        fp8_decode(arrived.from, n, to);
        std::fill(to + n, to + stride_, uint16_t(0));
    }

    // Called when a group's choices have arrived. Returns where its rows go, and their bytes.
    Parcels::Rest following(Incoming& in) {
        int64_t bytes = 0;
        for (int64_t i = in.place; i < in.place + in.count; ++i) bytes += chose(i, shard_) ? row_bytes_ : 0;
        return {grown(in.rows, bytes), size_t(bytes)};
    }

    const NxFeedForward* f_ = nullptr;
    uint16_t* rows_ = nullptr;
    int32_t* ids_ = nullptr;
    int32_t shard_ = 0;
    int64_t stride_ = 0, row_bytes_ = 0;  // row_bytes_: of a row as it is sent
    std::vector<uint8_t> packed_;
    std::vector<std::vector<uint8_t>> out_;  // by group
    std::vector<Incoming> in_;               // by group
    std::vector<Arrived> arrived_;
    Parcels parcels_;
};

}  // namespace
