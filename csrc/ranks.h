// Ranks: processes or threads that compute a step together. Each computes some outputs of every product. A sum
// is never cut, so every output has the same bits as on one rank.
//
// On one machine, the arrays that ranks fill together are in memory that all of them map. A product writes its
// outputs where the others read them; then the ranks meet. A rank can write to an array again after it has met
// the others once more: then nobody reads it any more. On several machines each rank has its own arrays, and a
// socket to every other rank. A product's outputs are sent to all of them as soon as they are computed.
#pragma once
#include <atomic>
#include <chrono>
#include <climits>
#include <cstdint>
#include <iterator>
#include <thread>

#include "mesh.h"
#include "pool.h"
#if defined(__linux__)
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#endif

extern "C" {
struct NxMeeting {  // at the beginning of the shared memory; zeros at first
    alignas(64) std::atomic<uint32_t> arrived;
    std::atomic<uint64_t> cores[7];  // a bit for the core of each rank that has arrived
    alignas(64) std::atomic<uint32_t> epoch;  // number of times that all have met
    std::atomic<uint32_t> sleeping;
    std::atomic<uint32_t> crowded;  // not 0: when all last met, two of them came from the same core
    alignas(64) std::atomic<uint32_t> broken;  // not 0: a rank has ended, and nobody may wait
};

struct NxRanks {
    int32_t rank, size;
    uint8_t* memory;         // shared; null: ranks use sockets
    const int32_t* sockets;  // [size], this rank's is not used; null: the memory is shared
    int32_t most_rows;       // maximum in a step
    int32_t spins;           // spins of a waiting rank before it sleeps
    int64_t waited;          // total nanoseconds in meetings and gatherings
};
}

namespace {

constexpr int64_t MEETING_BYTES = 4096;
constexpr int MOST_RANKS = 64;

inline void sleep_while(std::atomic<uint32_t>& word, uint32_t value) {
#if defined(__linux__)
    const timespec most{0, 50000000};  // 50 ms: then it checks whether a rank has ended
    syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT, value, &most, nullptr, 0);
#else
    if (word.load() == value) std::this_thread::sleep_for(std::chrono::microseconds(50));
#endif
}

// -1 if the system does not tell.
inline int this_core() {
#if defined(__linux__)
    return sched_getcpu();
#else
    return -1;
#endif
}

inline void wake_all(std::atomic<uint32_t>& word) {
#if defined(__linux__)
    syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
#else
    (void)word;
#endif
}

// Says that this rank has arrived. Returns the epoch for `wait`.
inline uint32_t arrive(NxMeeting& m, int size) {
    const uint32_t epoch = m.epoch.load();
    const int words = int(std::size(m.cores)), core = this_core();
    if (core >= 0) m.cores[core / 64 % words].fetch_or(uint64_t(1) << core % 64);
    if (m.arrived.fetch_add(1) + 1 == uint32_t(size)) {
        int cores = 0;
        for (auto& word : m.cores) cores += __builtin_popcountll(word.exchange(0));
        m.crowded.store(cores > 0 && cores < size);
        m.arrived.store(0);
        m.epoch.store(epoch + 1);
        if (m.sleeping.load() > 0) wake_all(m.epoch);
    }
    return epoch;
}

// Waits until every rank has arrived. Throws RankGone if `broken` is set. It does not spin if ranks share a core:
// then the others may need this one. The system may leave them on one core for long, beside an idle or a busy one.
inline void wait(NxMeeting& m, const std::atomic<uint32_t>& broken, uint32_t epoch, int spins) {
    const bool crowded = m.crowded.load();
    for (int i = 0; i < spins && m.epoch.load() == epoch; ++i)
        if (crowded) std::this_thread::yield(); else spin_pause();
    while (m.epoch.load() == epoch) {
        if (broken.load()) throw RankGone{};
        m.sleeping.fetch_add(1);
        sleep_while(m.epoch, epoch);
        m.sleeping.fetch_sub(1);
    }
    if (broken.load()) throw RankGone{};
}

inline void meet(NxMeeting& m, int size, int spins) { wait(m, m.broken, arrive(m, size), spins); }

// An array that the ranks fill together. With one rank, or with sockets, it is a vector that grows.
template <class T> class Shared {
  public:
    // Sets the address of the shared array. n: maximum of elements. Returns the bytes that they take.
    int64_t set_address(uintptr_t at, int64_t n) {
        shared_ = reinterpret_cast<T*>(at);
        return (n * int64_t(sizeof(T)) + 63) / 64 * 64;
    }
    T* room(int64_t n) {
        if (shared_) return shared_;
        if (int64_t(own_.size()) < n) own_.resize(size_t(n));
        return own_.data();
    }
    T* data() { return shared_ ? shared_ : own_.data(); }

  private:
    T* shared_ = nullptr;
    std::vector<T> own_;
};

// First output of part `part` of n outputs, in whole units, as in nextn.distributed.group.bounds.
inline int64_t bound(int64_t n, int64_t unit, int part, int parts) {
    const int64_t units = (n + unit - 1) / unit, at = units * part / parts * unit;
    return at < n ? at : n;
}

// Gathers array [rows, stride]: each rank has written its part of the first n columns, and gets those of the
// others.
template <class T>
inline void gather_outputs(const Mesh::Place& place, T* array, int64_t rows, int64_t stride, int64_t n, int64_t unit) {
    int64_t bounds[MOST_RANKS + 1];
    for (int i = 0; i <= place.size; ++i) bounds[i] = bound(n, unit, i, place.size) * int64_t(sizeof(T));
    Mesh::own().gather(place, reinterpret_cast<uint8_t*>(array), rows, stride * int64_t(sizeof(T)), bounds);
}

// A rank's place among the others, and its communication with them.
class Ranks {
  public:
    Ranks() = default;
    explicit Ranks(NxRanks* ranks) : r_(ranks && ranks->size > 1 ? ranks : nullptr) {}

    explicit operator bool() const { return r_ != nullptr; }
    int size() const { return r_ ? r_->size : 1; }
    int rank() const { return r_ ? r_->rank : 0; }
    const NxRanks& given() const { return *r_; }

    // The range of this rank's part of n outputs.
    int64_t begin(int64_t n, int64_t unit) const { return r_ ? bound(n, unit, r_->rank, r_->size) : 0; }
    int64_t end(int64_t n, int64_t unit) const { return r_ ? bound(n, unit, r_->rank + 1, r_->size) : n; }

    // See gather_outputs. With shared memory there is nothing to do.
    template <class T> void gather(T* array, int64_t rows, int64_t stride, int64_t n, int64_t unit) const {
        if (!r_ || !r_->sockets) return;
        const Watch watch(*r_);
        gather_outputs(place(), array, rows, stride, n, unit);
    }
    void gather_bytes(uint8_t* array, int64_t rows, int64_t stride, const int64_t* bounds) const {
        const Watch watch(*r_);
        Mesh::own().gather(place(), array, rows, stride, bounds);
    }
    // Sends bytes to each rank and receives bytes from it. out_at, in_at [ranks + 1]: where the bytes for each
    // rank begin in `out`, and those from it in `in`.
    void swap(const uint8_t* out, const int64_t* out_at, uint8_t* in, const int64_t* in_at) const {
        const Watch watch(*r_);
        Parcels parcels;
        for (int i = 0; i < r_->size; ++i)
            if (i != r_->rank)
                parcels.add(r_->sockets[i], out + out_at[i], out_at[i + 1] - out_at[i], in + in_at[i],
                            in_at[i + 1] - in_at[i]);
        Mesh::own().start(parcels, r_->spins);
        Mesh::own().finish(parcels, r_->spins);
    }

    // Called after the arrays of a product were gathered. With shared memory it waits until all ranks have
    // arrived.
    void meet() const {
        if (!r_ || r_->sockets) return;
        const Watch watch(*r_);
        ::meet(*reinterpret_cast<NxMeeting*>(r_->memory), r_->size, r_->spins);
    }

  private:
    Mesh::Place place() const { return {r_->rank, r_->size, r_->spins, r_->sockets}; }

    struct Watch {
        NxRanks& r;
        std::chrono::steady_clock::time_point from = std::chrono::steady_clock::now();
        explicit Watch(NxRanks& ranks) : r(ranks) {}
        ~Watch() { r.waited += std::chrono::nanoseconds(std::chrono::steady_clock::now() - from).count(); }
    };
    NxRanks* r_ = nullptr;
};

}  // namespace
