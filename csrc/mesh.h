// Exchanges bytes over sockets between ranks on several machines.
#pragma once
#include <cstdint>
#include <cstring>
#include <functional>
#include <vector>

#include "pool.h"
#if !defined(_WIN32)
#include <cerrno>
#include <poll.h>
#include <sys/socket.h>
#endif

namespace {

template <class T> T* grown(std::vector<T>& room, int64_t n) {
    if (int64_t(room.size()) < n) room.resize(size_t(n));
    return room.data();
}

struct RankGone {};  // thrown when a rank waits for one that has ended

// Bytes that go to every other rank and come from each. Both sides know how many, or the first bytes tell how
// many follow.
struct Parcels {
    struct Link {
        int32_t socket;
        const uint8_t* out;  // has to stay valid until all bytes are sent
        size_t size, sent;
        uint8_t* in;
        size_t awaited, had;
        bool follows = false;  // when `awaited` bytes have come, `rest` says how many follow
    };
    struct Rest {
        uint8_t* in;
        size_t awaited;
    };
    std::vector<Link> links;
    std::function<Rest(int)> rest;  // parameter: index of the link

    void clear() { links.clear(); }
    void add(int32_t socket, const uint8_t* out, int64_t size, uint8_t* in, int64_t awaited) {
        links.push_back({socket, out, size_t(size), 0, in, size_t(awaited), 0});
    }
    void came(Link& link) {
        if (!link.follows || link.had < link.awaited) return;
        const Rest more = rest(int(&link - links.data()));
        link.in = more.in, link.awaited = more.awaited, link.had = 0, link.follows = false;
    }
};

// Streams of bytes in both directions at once. If all ranks only sent at the same time, they would wait forever
// once the system's buffers are full. One for each thread: all sockets of its ranks have the same order of
// parcels.
class Mesh {
  public:
    struct Place {
        int32_t rank, size, spins;
        const int32_t* sockets;  // one to each other rank
    };

    static Mesh& own() {
        static thread_local Mesh mesh;
        return mesh;
    }

    // Returns when the system has taken all bytes that are sent. Bytes from others may arrive later. Throws
    // RankGone.
    void start(Parcels& parcels, int spins) {
        if (under_way_) finish(*under_way_, spins);  // its bytes come before these in the streams
        int64_t unsent = 0, missing = 0;
        for (const Parcels::Link& link : parcels.links) unsent += link.size, missing += link.awaited;
        if (!unsent && !missing) return;
        under_way_ = &parcels;
        run(parcels, spins, [](const Parcels::Link& link) { return link.sent < link.size; });
    }
    // Returns when all bytes have arrived. Throws RankGone.
    void finish(Parcels& parcels, int spins) {
        if (under_way_ != &parcels) return;  // finished when others were started
        run(parcels, spins, [](const Parcels::Link& link) { return link.had < link.awaited; });
        under_way_ = nullptr;
    }

    // array [rows, stride bytes]. Rank r has written bytes bounds[r] .. bounds[r + 1] of each row; afterwards
    // every rank has all of them. Throws RankGone.
    void gather(const Place& place, uint8_t* array, int64_t rows, int64_t stride, const int64_t* bounds) {
        const int64_t width = bounds[place.rank + 1] - bounds[place.rank];
        uint8_t* mine = grown(mine_, rows * width);
        for (int64_t i = 0; i < rows; ++i)
            memcpy(mine + i * width, array + i * stride + bounds[place.rank], size_t(width));
        uint8_t* room = grown(room_, rows * (bounds[place.size] - bounds[0]));
        const auto at = [&](int r) { return room + rows * (bounds[r] - bounds[0]); };
        gathered_.clear();
        for (int r = 0; r < place.size; ++r)
            if (r != place.rank)
                gathered_.add(place.sockets[r], mine, rows * width, at(r), rows * (bounds[r + 1] - bounds[r]));
        start(gathered_, place.spins);
        finish(gathered_, place.spins);
        for (int r = 0; r < place.size; ++r) {
            if (r == place.rank) continue;
            const int64_t n = bounds[r + 1] - bounds[r];
            for (int64_t i = 0; i < rows; ++i) memcpy(array + i * stride + bounds[r], at(r) + i * n, size_t(n));
        }
    }

  private:
    // Moves bytes in both directions as long as `wanted` is true for any link.
    template <class Wanted> void run(Parcels& parcels, int spins, const Wanted& wanted) {
        try {
            for (int idle = 0;;) {
                bool some = false;
                for (const Parcels::Link& link : parcels.links) some |= wanted(link);
                if (!some) return;
                int64_t moved = 0;
                for (Parcels::Link& link : parcels.links) {
                    moved += move(link);
                    parcels.came(link);
                }
                idle = moved ? 0 : idle + 1;
                if (idle > spins) sleep(parcels); else if (idle) spin_pause();
            }
        } catch (const RankGone&) {
            under_way_ = nullptr;
            throw;
        }
    }

#if !defined(_WIN32)
#if !defined(MSG_NOSIGNAL)
#define MSG_NOSIGNAL 0  // not needed: Python ignores SIGPIPE
#endif
    static int64_t move(Parcels::Link& link) {
        int64_t moved = 0;
        if (link.sent < link.size) {
            const int64_t n = done(send(link.socket, link.out + link.sent, link.size - link.sent,
                                        MSG_DONTWAIT | MSG_NOSIGNAL));
            link.sent += size_t(n), moved += n;
        }
        if (link.had < link.awaited) {
            const ssize_t n = recv(link.socket, link.in + link.had, link.awaited - link.had, MSG_DONTWAIT);
            if (n == 0) throw RankGone{};
            link.had += size_t(done(n)), moved += done(n);
        }
        return moved;
    }
    static int64_t done(ssize_t n) {
        if (n >= 0) return n;
        if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) return 0;
        throw RankGone{};
    }
    // Waits until bytes can be sent or received, at most 1 s.
    void sleep(const Parcels& parcels) {
        polled_.clear();
        for (const Parcels::Link& link : parcels.links) {
            const short events = short((link.sent < link.size ? POLLOUT : 0) | (link.had < link.awaited ? POLLIN : 0));
            if (events) polled_.push_back({link.socket, events, 0});
        }
        poll(polled_.data(), nfds_t(polled_.size()), 1000);
    }
    std::vector<pollfd> polled_;
#else
    static int64_t move(Parcels::Link&) { throw RankGone{}; }
    void sleep(const Parcels&) {}
#endif
    std::vector<uint8_t> mine_, room_;
    Parcels gathered_;
    Parcels* under_way_ = nullptr;
};

}  // namespace
