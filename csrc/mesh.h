// Gathers over sockets, between ranks on several machines.
#pragma once
#include <cstdint>
#include <cstring>
#include <vector>

#include "pool.h"
#if !defined(_WIN32)
#include <cerrno>
#include <poll.h>
#include <sys/socket.h>
#endif

namespace {

struct RankGone {};  // thrown where a rank waits for one that is gone

// What goes from every rank to every other one over sockets: streams of bytes in both directions at once, for a rank
// that only sent would wait for ever when the others do the same and the system's buffers are full.
class Mesh {
  public:
    struct Place {
        int32_t rank, size, spins;
        const int32_t* sockets;  // to each other rank
    };

    // array [rows, stride bytes]: rank r has written bytes bounds[r] .. bounds[r + 1] of each row. Throws RankGone.
    void gather(const Place& place, uint8_t* array, int64_t rows, int64_t stride, const int64_t* bounds) {
        const int64_t width = bounds[place.rank + 1] - bounds[place.rank];
        mine_.resize(size_t(rows * width));
        for (int64_t i = 0; i < rows; ++i)
            memcpy(mine_.data() + i * width, array + i * stride + bounds[place.rank], size_t(width));
        links_.resize(size_t(place.size));
        int64_t left = 0;
        for (int r = 0; r < place.size; ++r) {
            Link& link = links_[size_t(r)];
            link.sent = link.had = 0;
            const int64_t theirs = r == place.rank ? 0 : rows * (bounds[r + 1] - bounds[r]);
            link.room.resize(size_t(theirs));
            left += theirs + (r == place.rank ? 0 : int64_t(mine_.size()));
        }
        for (int idle = 0; left > 0;) {
            int64_t moved = 0;
            for (int r = 0; r < place.size; ++r)
                if (r != place.rank) moved += move(place.sockets[r], links_[size_t(r)]);
            left -= moved;
            idle = moved ? 0 : idle + 1;
            if (idle > place.spins) sleep(place); else if (idle) breathe();
        }
        for (int r = 0; r < place.size; ++r) {
            if (r == place.rank) continue;
            const int64_t n = bounds[r + 1] - bounds[r];
            for (int64_t i = 0; i < rows; ++i)
                memcpy(array + i * stride + bounds[r], links_[size_t(r)].room.data() + i * n, size_t(n));
        }
    }

  private:
    struct Link {
        size_t sent, had;
        std::vector<uint8_t> room;
    };

#if !defined(_WIN32)
#if !defined(MSG_NOSIGNAL)
#define MSG_NOSIGNAL 0  // Python has told the system to send no SIGPIPE
#endif
    int64_t move(int socket, Link& link) const {
        int64_t moved = 0;
        if (link.sent < mine_.size()) {
            const int64_t n = done(send(socket, mine_.data() + link.sent, mine_.size() - link.sent,
                                        MSG_DONTWAIT | MSG_NOSIGNAL));
            link.sent += size_t(n), moved += n;
        }
        if (link.had < link.room.size()) {
            const ssize_t n = recv(socket, link.room.data() + link.had, link.room.size() - link.had, MSG_DONTWAIT);
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
    // Until there is something to move.
    void sleep(const Place& place) {
        polled_.clear();
        for (int r = 0; r < place.size; ++r) {
            const Link& link = links_[size_t(r)];
            if (r == place.rank) continue;
            const short events = short((link.sent < mine_.size() ? POLLOUT : 0) | (link.had < link.room.size() ? POLLIN : 0));
            if (events) polled_.push_back({place.sockets[r], events, 0});
        }
        poll(polled_.data(), nfds_t(polled_.size()), 1000);
    }
    std::vector<pollfd> polled_;
#else
    int64_t move(int, Link&) const { throw RankGone{}; }
    void sleep(const Place&) {}
#endif
    std::vector<uint8_t> mine_;
    std::vector<Link> links_;
};

}  // namespace
