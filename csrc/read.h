// Reads memory and does nothing else: the upper limit for kernels that read weights.
#pragma once
#include <atomic>

#include "pool.h"
#include "simd.h"

namespace {

// Adds up the `bytes` bytes at p as words of 64 bits; the last bytes % 512 are not read. The sum is returned so
// that the compiler cannot leave out any read.
inline uint64_t read_all(Pool& pool, const uint8_t* p, int64_t bytes) {
    constexpr int64_t PIECE = 512, TASK = 4096 * PIECE;
    const int64_t pieces = bytes / PIECE * PIECE;
    std::atomic<uint64_t> total{0};
    pool.for_each(int((pieces + TASK - 1) / TASK), [&](int task, int) {
        const int64_t from = task * TASK, to = from + TASK < pieces ? from + TASK : pieces;
        vi acc[8];
        NX_UNROLL for (int i = 0; i < 8; ++i) acc[i] = splat_word(0);
        for (const uint8_t* at = p + from; at < p + to; at += PIECE) {
            NX_UNROLL for (int i = 0; i < 8; ++i) acc[i] += words(at + i * 64);
        }
        NX_UNROLL for (int i = 1; i < 8; ++i) acc[0] += acc[i];
        uint64_t lanes[8], sum = 0;
        memcpy(lanes, &acc[0], 64);
        for (uint64_t lane : lanes) sum += lane;
        total.fetch_add(sum, std::memory_order_relaxed);
    });
    return total.load();
}

}  // namespace
