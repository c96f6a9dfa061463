// Sends KV pages from a pool to a socket, and receives them, in pieces that stay in the cache. A page is
// read from memory, or written to it, once; all other work on it is in the cache. No function waits for a
// socket.
#pragma once
#include "pages.h"

#if !defined(_WIN32)
#include <cerrno>
#include <sys/socket.h>

#if !defined(MSG_NOSIGNAL)
#define MSG_NOSIGNAL 0  // not needed: Python ignores SIGPIPE
#endif

namespace {

constexpr int64_t AT_ONCE = 512 << 10;  // minimum of bytes sent at once: each time may wake the receiver

// zlib's crc32, for a few bytes: a table would not pay.
inline uint32_t crc32(const uint8_t* data, int64_t bytes) {
    uint32_t crc = ~0u;
    for (int64_t i = 0; i < bytes; ++i) {
        crc ^= data[i];
        for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? 0xedb88320u : 0);
    }
    return ~crc;
}

// Sends the `filled` bytes at the front of buffer, then the pages, which are copied behind them, and their
// checksum. left <- the range of buffer that the socket did not take, also after an error: the next send will report
// that.
inline void send_runs(int socket, const Runs& r, const uint8_t* pool, uint8_t* buffer, int64_t filled, int64_t* left) {
    uint64_t sums[SUM_LANES] = {};
    int64_t sent = 0;
    bool takes = true;
    for (int64_t at = 0; at < r.bytes(); at += r.run) {
        copy_run<false>(pool + r.place(at), buffer + filled, r.run, sums);
        filled += r.run;
        if (at + r.run == r.bytes()) {
            const uint32_t crc = crc32(reinterpret_cast<const uint8_t*>(sums), sizeof sums);
            for (int shift = 24; shift >= 0; shift -= 8) buffer[filled++] = uint8_t(crc >> shift);
        } else if (!takes || filled - sent < AT_ONCE) {
            continue;
        }
        if (!takes) break;
        const ssize_t n = send(socket, buffer + sent, size_t(filled - sent), MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n > 0) sent += n;
        takes = sent == filled;
        if (takes) sent = filled = 0;  // uses the same memory again: it is in the cache
    }
    left[0] = sent, left[1] = filled;
}

// The buffer of a receiver begins with one row for held bytes. So the socket always writes to the same aligned
// address, which can take a third of the time.
struct Arriving {
    int64_t placed;  // bytes that are in the pool
    int64_t held;    // bytes that come after those, in front of buffer + SUM_ROW: a part of a row, or what follows
};

// Moves the held bytes and the `came` bytes behind them into the pool, except a part of a row and what follows the
// pages. pool null: the bytes are dropped.
inline void place_held(const Runs& r, uint8_t* buffer, int64_t came, Arriving& a, uint8_t* pool, uint64_t* sums) {
    const uint8_t* data = buffer + SUM_ROW - a.held;
    const int64_t rest = r.bytes() - a.placed, here = a.held + came;
    const int64_t rows = (here < rest ? here : rest) / SUM_ROW * SUM_ROW;
    if (pool) write_rows(r, data, a.placed, rows, pool, sums);
    a.placed += rows, a.held = here - rows;
    memmove(buffer + SUM_ROW - a.held, data + rows, size_t(a.held));
}

// Reads what has arrived of the pages and of the `tail` bytes that follow. buffer: of `size` bytes. Returns the
// number of bytes read. If it is zero: 0 at the stream's end, else -errno.
inline int64_t receive_runs(int socket, const Runs& r, int64_t tail, uint8_t* buffer, int64_t size, Arriving& a,
                            uint8_t* pool, uint64_t* sums) {
    for (int64_t came = 0;;) {
        const int64_t rest = r.bytes() + tail - a.placed - a.held, room = size - SUM_ROW;
        if (rest == 0) return came;
        const ssize_t n = recv(socket, buffer + SUM_ROW, size_t(rest < room ? rest : room), MSG_DONTWAIT);
        if (n <= 0) return came ? came : n < 0 ? -int64_t(errno) : 0;
        came += n;
        place_held(r, buffer, n, a, pool, sums);
    }
}

}  // namespace
#endif
