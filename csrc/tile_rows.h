// Rows in the form that AMX tiles take. They are packed tile by tile before a product, for two reasons. In
// their original place, the 16 rows of a tile would often fall into one set of the first-level cache. And the
// last tile of a block of k would not end in zeros.
#pragma once
#include <immintrin.h>

#include <vector>

#include "chains.h"
#include "panels.h"
#include "pool.h"

namespace {

// Bf16, e4m3 and int8 weights, unless NxWeight::way is another one.
inline bool in_tiles(const NxWeight& w) { return w.kind != F32 && !is_coded(w.kind) && w.way < 2; }

constexpr int TILE_ROWS = 16, TILE_WORDS = 16;  // a tile: 16 rows of 64 bytes
constexpr int TILE_BYTES = 1024;

// The tiles of k of a row that is multiplied by a weight. Each block of k begins with a new tile.
struct Tiling {
    int words, block, per_block, count;

    explicit Tiling(const NxWeight& w) : words(row_words(w)), block(block_words(w)) {
        per_block = (block + TILE_WORDS - 1) / TILE_WORDS;
        const int rest = words % block;
        count = words / block * per_block + (rest + TILE_WORDS - 1) / TILE_WORDS;
    }
};

// Rows for weights of one shape, in runs: the rows of a run are multiplied by the same weights. The k tiles of
// every 16 rows of a run (the last can be fewer) are one after another, each [rows][16 words].
class Inputs {
  public:
    // Run r is rows [begin[r], begin[r + 1]) of x.
    void take(Pool& pool, const Rows& x, const int32_t* begin, int runs, const NxWeight& w) {
        rows_ = x;
        if (!in_tiles(w)) return vectors_.take(pool, x, begin[runs], w, by_pairs(w));
        const Tiling tiling(w);
        tiles_ = tiling.count;
        const int64_t size = int64_t(begin[runs]) * tiles_ * TILE_WORDS;
        if (int64_t(room_.size()) < size + TILE_WORDS) room_.resize(size_t(size) + TILE_WORDS);
        base_ = reinterpret_cast<uint32_t*>((reinterpret_cast<uintptr_t>(room_.data()) + 63) & ~uintptr_t(63));
        const int parts = runs >= 2 * pool.threads() ? 1 : 2 * pool.threads();  // tasks in a run
        pool.for_each(runs * parts, [&](int task, int) {
            const int r = task / parts, part = task % parts;
            const int tiles = (begin[r + 1] - begin[r] + TILE_ROWS - 1) / TILE_ROWS;
            for (int t = tiles * part / parts; t < tiles * (part + 1) / parts; ++t) {
                const int from = begin[r] + t * TILE_ROWS, left = begin[r + 1] - from;
                pack(tiling, from, left < TILE_ROWS ? left : TILE_ROWS);
            }
        }, size * 4);
    }

    const VectorRows& vectors() const { return vectors_; }
    // The tiles of the rows from i on. i: the first row of a run, or a multiple of 16 after it.
    const uint8_t* tiles(int i) const {
        return reinterpret_cast<const uint8_t*>(base_ + int64_t(i) * tiles_ * TILE_WORDS);
    }

  private:
    void pack(const Tiling& tiling, int from, int m) {
        for (int j = 0; j < m; ++j) {
            const uint32_t* source = rows_(from + j);
            uint32_t* to = base_ + (int64_t(from) * tiles_ + j) * TILE_WORDS;
            for (int block = 0; block < tiling.words; block += tiling.block) {
                const int end = block + tiling.block < tiling.words ? block + tiling.block : tiling.words;
                for (int k = block; k < end; k += TILE_WORDS, to += m * TILE_WORDS) {
                    const int n = end - k < TILE_WORDS ? end - k : TILE_WORDS;
                    _mm512_store_si512(to, _mm512_maskz_loadu_epi32(__mmask16((1u << n) - 1), source + k));
                }
            }
        }
    }

    Rows rows_{};
    VectorRows vectors_;
    int tiles_ = 0;
    uint32_t* base_ = nullptr;
    std::vector<uint32_t> room_;
};

}  // namespace
