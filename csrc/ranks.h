// Ranks: processes or threads that compute a step together, each some outputs of every product. A sum is never cut, so
// every output has the bits that one rank gives it.
//
// On one machine the arrays that they fill together lie in memory that all of them map: a product writes its outputs
// where the others read them, and then the ranks meet. An array may be written again as soon as its rank has met the
// others once more: nobody reads it then. On several machines each rank has its own arrays, and a socket to every other
// one: a product's outputs are sent to all as soon as they are there.
#pragma once
#include <atomic>
#include <chrono>
#include <climits>
#include <cstdint>
#include <thread>

#include "mesh.h"
#include "pool.h"
#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#endif

extern "C" {
struct NxMeeting {  // at the beginning of the shared memory; zeros at first
    alignas(64) std::atomic<uint32_t> arrived;
    alignas(64) std::atomic<uint32_t> epoch;  // how often all have met
    std::atomic<uint32_t> sleeping;
    alignas(64) std::atomic<uint32_t> broken;  // not 0: some rank is gone, nobody may wait
};

struct NxRanks {
    int32_t rank, size;
    uint8_t* memory;         // shared; null: there are sockets
    const int32_t* sockets;  // [size], of this rank any; null: the memory is shared
    int32_t most_rows;       // of a step
    int32_t spins;           // before a rank that waits sleeps
    int64_t waited;          // nanoseconds in meetings and gatherings, all in all
};
}

namespace {

constexpr int64_t MEETING_BYTES = 4096;
constexpr int MOST_RANKS = 64;

inline void sleep_while(std::atomic<uint32_t>& word, uint32_t value) {
#if defined(__linux__)
    const timespec most{0, 50000000};  // to look whether somebody is gone
    syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT, value, &most, nullptr, 0);
#else
    if (word.load() == value) std::this_thread::sleep_for(std::chrono::microseconds(50));
#endif
}

inline void wake_all(std::atomic<uint32_t>& word) {
#if defined(__linux__)
    syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
#else
    (void)word;
#endif
}

// This rank has come; what to give to `wait`.
inline uint32_t arrive(NxMeeting& m, int size) {
    const uint32_t epoch = m.epoch.load();
    if (m.arrived.fetch_add(1) + 1 == uint32_t(size)) {
        m.arrived.store(0);
        m.epoch.store(epoch + 1);
        if (m.sleeping.load() > 0) wake_all(m.epoch);
    }
    return epoch;
}

// Every rank has come. Throws RankGone where `broken` says so.
inline void wait(NxMeeting& m, const std::atomic<uint32_t>& broken, uint32_t epoch, int spins) {
    for (int i = 0; i < spins && m.epoch.load() == epoch; ++i) breathe();
    while (m.epoch.load() == epoch) {
        if (broken.load()) throw RankGone{};
        m.sleeping.fetch_add(1);
        sleep_while(m.epoch, epoch);
        m.sleeping.fetch_sub(1);
    }
    if (broken.load()) throw RankGone{};
}

inline void meet(NxMeeting& m, int size, int spins) { wait(m, m.broken, arrive(m, size), spins); }

// An array that the ranks fill together; of one rank, a vector that grows.
template <class T> class Shared {
  public:
    // n: elements at most. at: where they are to lie. Returns the bytes that they take.
    int64_t lay(uintptr_t at, int64_t n) {
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

// Where part `part` of n outputs begins, in whole units: nextn.distributed.group.bounds.
inline int64_t bound(int64_t n, int64_t unit, int part, int parts) {
    const int64_t units = (n + unit - 1) / unit, at = units * part / parts * unit;
    return at < n ? at : n;
}

// array [rows, stride] elements: of n columns each of these ranks has written its own.
template <class T>
inline void gather_outputs(const Mesh::Place& place, T* array, int64_t rows, int64_t stride, int64_t n, int64_t unit) {
    int64_t bounds[MOST_RANKS + 1];
    for (int i = 0; i <= place.size; ++i) bounds[i] = bound(n, unit, i, place.size) * int64_t(sizeof(T));
    Mesh::own().gather(place, reinterpret_cast<uint8_t*>(array), rows, stride * int64_t(sizeof(T)), bounds);
}

// A rank's place among the others.
class Ranks {
  public:
    Ranks() = default;
    explicit Ranks(NxRanks* ranks) : r_(ranks && ranks->size > 1 ? ranks : nullptr) {}

    explicit operator bool() const { return r_ != nullptr; }
    int size() const { return r_ ? r_->size : 1; }
    int rank() const { return r_ ? r_->rank : 0; }
    const NxRanks& given() const { return *r_; }

    // Where this rank's part of n outputs begins and ends.
    int64_t begin(int64_t n, int64_t unit) const { return r_ ? bound(n, unit, r_->rank, r_->size) : 0; }
    int64_t end(int64_t n, int64_t unit) const { return r_ ? bound(n, unit, r_->rank + 1, r_->size) : n; }

    // See gather_outputs; in shared memory there is nothing to do.
    template <class T> void gather(T* array, int64_t rows, int64_t stride, int64_t n, int64_t unit) const {
        if (!r_ || !r_->sockets) return;
        const Watch watch(*r_);
        gather_outputs(place(), array, rows, stride, n, unit);
    }
    void gather_bytes(uint8_t* array, int64_t rows, int64_t stride, const int64_t* bounds) const {
        const Watch watch(*r_);
        Mesh::own().gather(place(), array, rows, stride, bounds);
    }
    // out_at, in_at [ranks + 1]: where what goes to each rank begins in `out`, and what comes from it in `in`.
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

    // After the arrays of a product were gathered: in shared memory that takes no more than that all have come.
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
