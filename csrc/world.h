// All ranks that share the routed experts of a model. They belong to attention groups, each with its own
// requests. The experts are divided into `shards` shards of whole experts. The ranks of a shard each have a
// slice of each of its experts, cut as in csrc/ranks.h.
//
// In a MoE layer each rank offers its rows to all. Each shard computes its experts for the rows that chose them
// and returns one result for every choice, f32. The row's owner adds them in the usual order. So a row has the
// same bits as on one rank, with any placement of experts and any other ranks.
//
// On one machine, this is in memory that all ranks map:
//
//     page 0     meetings, one for each lane; number of rows of the groups
//     each lane  rows [groups][most_rows][hidden] bf16, ids [groups][most_rows][top_k], a result for each id, f32,
//                inner columns of the shards
//
// On several machines each rank has its own arrays and a socket to every other rank. The ranks of a group have
// the same rows and routes. Ranks of other groups get the rows (csrc/group_rows.h), and results are sent back
// (csrc/shard_results.h).
#pragma once
#include <algorithm>

#include "ranks.h"

extern "C" {
struct NxWorld {
    int32_t rank, size, groups, shards;
    int32_t most_rows;         // maximum of a group in a step
    int32_t spins;
    uint8_t* memory;           // shared, zeros at first; null: ranks use sockets
    const int32_t* sockets;    // [size], this rank's is not used; null: the memory is shared
    int32_t dynamic;           // 1: replicas of an expert take turns from row to row; 0: each group uses one
    int32_t epoch;             // 0 and 1 in turns, one for each nx_world_step
    int32_t two;               // 1: this step has two lanes
    int32_t rows[2][64];       // rows of each group in this step, in each lane
    int64_t waited[4];         // total nanoseconds of waiting, by what was waited for: see World::Awaited
    int64_t sent;              // total bytes sent to other ranks
    double link;               // simulated nanoseconds for each byte between ranks; 0: none. For experiments
    int64_t link_free;         // with link: when the last byte has arrived
    int64_t all_sent;          // with sockets: bytes that all ranks of this group had sent before this step
};
}

namespace {

constexpr int LANES = 2;
constexpr int64_t MEETING_STRIDE = 256, ROWS_AT = LANES * MEETING_STRIDE;
static_assert(sizeof(NxMeeting) <= MEETING_STRIDE, "one after another");

// The arrays of one lane of rows, in memory that all ranks map.
struct LaneArrays {
    Shared<uint16_t> rows, inner;
    Shared<int32_t> ids;
    Shared<float> results;

    // Sets the addresses of the arrays, from offset `at` on. Returns the offset of their end.
    int64_t set_addresses(uintptr_t memory, int64_t at, const NxWorld& w, int64_t hidden, int64_t top_k,
                          int64_t inner_width) {
        const int64_t count = int64_t(w.groups) * w.most_rows;
        at += rows.set_address(memory + at, count * hidden);
        at += ids.set_address(memory + at, count * top_k);
        at += results.set_address(memory + at, count * top_k * hidden);
        at += inner.set_address(memory + at, w.shards < w.size ? w.shards * count * top_k * inner_width : 0);
        return at;
    }
};

class World {
  public:
    // What a rank waits for: that all groups begin the step; rows for its experts; results for its group's rows;
    // the other slices of its experts.
    enum class Awaited { STEP, ROWS, RESULTS, SLICES };

    World() = default;
    explicit World(NxWorld* world) : w_(world) {}

    explicit operator bool() const { return w_ != nullptr; }
    const NxWorld& given() const { return *w_; }
    bool apart() const { return w_->sockets != nullptr; }  // ranks are on several machines
    int size() const { return w_->size; }
    int each() const { return w_->size / w_->groups; }  // number of ranks in a group
    int group() const { return w_->rank / each(); }
    int slices() const { return w_->size / w_->shards; }
    int slice() const { return w_->rank % slices(); }
    int shard() const { return w_->rank / slices(); }

    // The index of a group's row among the rows of all groups. Arrays of a rank's own have no gaps between
    // groups.
    int64_t place(int lane, int group, int64_t row) const {
        if (!apart()) return int64_t(group) * w_->most_rows + row;
        for (int g = 0; g < group; ++g) row += w_->rows[lane][g];
        return row;
    }

    // First of the n outputs in this rank's slice.
    int64_t begin(int64_t n, int64_t unit) const { return bound(n, unit, slice(), slices()); }

    // Tells all groups how many rows this group has in this step, and gets their numbers. The step has two
    // lanes if any group wants them: `first` rows in one and `rest` in the other. Throws RankGone.
    void step(int32_t first, int32_t rest, bool wanted) const {
        if (apart()) return step_apart(first, rest, wanted);
        constexpr int NUMBERS = 3;
        w_->epoch ^= 1;
        int32_t* all = reinterpret_cast<int32_t*>(w_->memory + ROWS_AT) + w_->epoch * NUMBERS * MOST_RANKS;
        int32_t* own = all + group() * NUMBERS;
        if (w_->rank % each() == 0) own[0] = first, own[1] = rest, own[2] = wanted;
        meet(0, Awaited::STEP);
        bool two = false;
        for (int g = 0; g < w_->groups; ++g) two |= all[g * NUMBERS + 2] != 0;
        for (int g = 0; g < w_->groups; ++g) {
            const int32_t* its = all + g * NUMBERS;
            w_->rows[0][g] = two ? its[0] : its[0] + its[1];
            w_->rows[1][g] = two ? its[1] : 0;
        }
        w_->two = two;
    }
    int rows(int lane, int group) const { return w_->rows[lane][group]; }
    int64_t all_rows(int lane) const { return place(lane, w_->groups, 0); }  // with sockets only
    bool two() const { return w_->two != 0; }

    // See gather_outputs, for the slices of this rank's shard.
    template <class T> void gather(T* array, int64_t rows, int64_t stride, int64_t n, int64_t unit) const {
        const Watch watch(*w_, Awaited::SLICES);
        gather_outputs({slice(), slices(), w_->spins, w_->sockets + shard() * slices()}, array, rows, stride, n, unit);
    }
    // See Mesh.
    void start(Parcels& parcels, Awaited what) const {
        const Watch watch(*w_, what);
        for (const Parcels::Link& link : parcels.links) w_->sent += int64_t(link.size);
        Mesh::own().start(parcels, w_->spins);
    }
    void finish(Parcels& parcels, Awaited what) const {
        const Watch watch(*w_, what);
        Mesh::own().finish(parcels, w_->spins);
    }

    struct Ticket {
        uint32_t epoch;
        int64_t due;  // with `link`: when the bytes that this rank sends have arrived
    };
    // bytes: how many this rank sends to others.
    Ticket arrive(int lane, int64_t bytes) const {
        w_->sent += bytes;
        if (w_->link > 0) w_->link_free = std::max(w_->link_free, now()) + int64_t(w_->link * double(bytes));
        return {::arrive(meeting(lane), w_->size), w_->link_free};
    }
    void wait(int lane, const Ticket& ticket, Awaited what) const {
        const Watch watch(*w_, what);
        ::wait(meeting(lane), meeting(0).broken, ticket.epoch, w_->spins);
        if (ticket.due > now()) std::this_thread::sleep_for(std::chrono::nanoseconds(ticket.due - now()));
    }
    void meet(int lane, Awaited what) const { wait(lane, arrive(lane, 0), what); }

  private:
    struct Watch {
        int64_t& total;
        int64_t from = now();
        Watch(NxWorld& w, Awaited what) : total(w.waited[int(what)]) {}
        ~Watch() { total += now() - from; }
    };

    // step() with sockets. The first rank of each group decides for the group.
    void step_apart(int32_t first, int32_t rest, bool wanted) const {
        constexpr int NUMBERS = 4;
        const int64_t n = int64_t(NUMBERS) * w_->size;
        std::vector<int64_t> said(size_t(n), 0);
        int64_t* own = said.data() + w_->rank * NUMBERS;
        own[0] = first, own[1] = rest, own[2] = wanted, own[3] = w_->sent;
        {
            const Watch watch(*w_, Awaited::STEP);
            gather_outputs({w_->rank, w_->size, w_->spins, w_->sockets}, said.data(), 1, n, n, NUMBERS);
        }
        const auto of_group = [&](int g) { return said.data() + int64_t(g) * each() * NUMBERS; };
        w_->all_sent = 0;
        for (int r = 0; r < each(); ++r) w_->all_sent += of_group(group())[r * NUMBERS + 3];
        w_->two = 0;
        for (int g = 0; g < w_->groups; ++g) w_->two |= of_group(g)[2] != 0;
        for (int g = 0; g < w_->groups; ++g) {
            const int64_t* its = of_group(g);
            w_->rows[0][g] = int32_t(w_->two ? its[0] : its[0] + its[1]);
            w_->rows[1][g] = int32_t(w_->two ? its[1] : 0);
        }
    }

    static int64_t now() {
        return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
    }
    NxMeeting& meeting(int lane) const { return reinterpret_cast<NxMeeting*>(w_->memory + lane * MEETING_STRIDE)[0]; }
    NxWorld* w_ = nullptr;
};

}  // namespace
