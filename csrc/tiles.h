// Rows times a panel in AMX tiles: bf16, e4m3 and int8 weights, any number of rows.
//
// A tile of a weight is 16 pairs of k by 16 outputs, which is how a panel is stored. A tile of rows is up to 16
// rows by 16 pairs. TDPBF16PS adds the even k of a tile in one chain and the odd ones in another; their sum is
// added to the output's chain of tiles (Intel SDM, volume 2). k is cut into tiles in the same places for any
// number of rows, and the rows of a tile do not affect each other. Row invariance needs nothing else. A vector
// dot product adds in another order, so a single row goes through tiles as well.
//
// Rows are packed first (tile_rows.h). The last tile of a block of k is padded with zeros, in the rows and in
// the weight.
#pragma once
#include <immintrin.h>

#include "chains.h"
#include "tile_rows.h"

namespace {

constexpr int MOST_ROWS = 256;  // rows that are computed for one read of a panel
constexpr int CHUNK = 8;        // tiles of k that are multiplied by all those rows in turn: 32 KiB of a panel

// The compiler must not move anything across this: gcc's tile intrinsics do not say what they read.
inline void compiler_fence() { __asm__ volatile("" ::: "memory"); }

struct alignas(64) TileConfig {  // the format of LDTILECFG
    uint8_t palette = 1, start = 0, none[14] = {};
    uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {};
};
static_assert(sizeof(TileConfig) == 64);

struct TileConfigs {
    TileConfig of[2 * TILE_ROWS + 1];
    constexpr TileConfigs() : of() {
        for (int m = 1; m <= 2 * TILE_ROWS; ++m) {
            const int upper = m < TILE_ROWS ? m : TILE_ROWS, lower = m > TILE_ROWS ? m - TILE_ROWS : m;
            const int rows[8] = {upper, upper, lower, lower, upper, lower, 16, 16};
            for (int i = 0; i < 8; ++i) of[m].rows[i] = uint8_t(rows[i]);
        }
    }
};
constexpr TileConfigs CONFIGS;

// Loads the configuration for m <= 32 rows. Tiles 0..3 are C, 4 and 5 are A, 6 and 7 are B. C 0 and 1 and A 4
// have the first 16 rows, C 2 and 3 and A 5 the rest. With at most 16 rows, C 0..3 and A 4 have all of them.
//
// Loading a configuration costs as much as a small panel, so a thread keeps it. A worker keeps it forever, the
// caller until it leaves the library (TileUse), because other code on its thread can have a configuration of
// its own.
inline thread_local int configured = 0;

inline void configure(int m) {
    if (m == TILE_ROWS) m = 2 * TILE_ROWS;  // same configuration
    compiler_fence();
    if (m != configured) _tile_loadconfig(&CONFIGS.of[m]);
    configured = m;
    compiler_fence();
}

struct TileUse {
    TileUse() { configured = 0; }
    ~TileUse() {
        if (configured) _tile_release();
        configured = 0;
    }
    TileUse(const TileUse&) = delete;
    TileUse& operator=(const TileUse&) = delete;
};

// Prefetches what is read next, from memory into the second-level cache, little by little while tiles are
// multiplied.
struct Ahead {
    const uint8_t* at;
    int lines;  // lines at each step
    void step() {
        for (int i = 0; i < lines; ++i, at += 64) __builtin_prefetch(at, 0, 2);
    }
};

// A few tiles of k of a panel, as bf16. stored: the data are in the weight itself, not in a scratch buffer.
struct Weights {
    const uint8_t* data;
    int tiles;
    bool stored;
};

// Words [from, to) of a panel. Bf16 is used as stored; other kinds, and a range that does not end with a full
// tile, are copied to `scratch`.
template <class Load, int V> inline Weights weights_of(const uint8_t* w, int from, int to, uint8_t* scratch) {
    const int count = to - from, tiles = (count + TILE_WORDS - 1) / TILE_WORDS;
    const uint8_t* source = w + int64_t(from) * V * Load::bytes;
    if (Load::bytes == 64 && count % TILE_WORDS == 0) return {source, tiles, true};
    for (int i = 0; i < count * V; ++i, source += Load::bytes) {
        _mm512_store_si512(scratch + i * 64, Load::get(source));
    }
    for (int i = count * V; i < tiles * TILE_WORDS * V; ++i)
        _mm512_store_si512(scratch + i * 64, _mm512_setzero_si512());
    return {scratch, tiles, false};
}

// sums [m][64] (+)= m <= 16 rows times V vectors of outputs.
template <int V> inline void one_tile(const uint8_t* a, int m, const Weights& b, float* sums, bool fresh) {
    constexpr int wide = V * 64, line = PANEL * 4;
    if (fresh) {
        _tile_zero(0);
        if constexpr (V > 1) _tile_zero(1);
        if constexpr (V > 2) _tile_zero(2);
        if constexpr (V > 3) _tile_zero(3);
    } else {
        _tile_loadd(0, sums, line);
        if constexpr (V > 1) _tile_loadd(1, sums + 16, line);
        if constexpr (V > 2) _tile_loadd(2, sums + 32, line);
        if constexpr (V > 3) _tile_loadd(3, sums + 48, line);
    }
    const uint8_t* w = b.data;
    constexpr int ahead = 16 * wide;
    for (int t = 0; t < b.tiles; ++t, w += 16 * wide, a += m * 64) {
        _tile_loadd(4, a, 64);
        _tile_loadd(6, w, wide);
        _tile_dpbf16ps(0, 4, 6);
        if constexpr (V > 1) { _tile_loadd(7, w + 64, wide); _tile_dpbf16ps(1, 4, 7); }
        if constexpr (V > 2) { _tile_loadd(6, w + 128, wide); _tile_dpbf16ps(2, 4, 6); }
        if constexpr (V > 3) { _tile_loadd(7, w + 192, wide); _tile_dpbf16ps(3, 4, 7); }
        if (b.stored)  // after the loads that are needed now
            for (int i = 0; i < 16 * wide; i += 64) __builtin_prefetch(w + ahead + i);
    }
    _tile_stored(0, sums, line);
    if constexpr (V > 1) _tile_stored(1, sums + 16, line);
    if constexpr (V > 2) _tile_stored(2, sums + 32, line);
    if constexpr (V > 3) _tile_stored(3, sums + 48, line);
}

// sums [rows][64] += the sums of a complete block, scaled.
template <int V> inline void add_scaled(const float* parts, int rows, const float* scales, float* sums) {
    for (int i = 0; i < rows * PANEL; i += PANEL)
        for (int v = 0; v < V; ++v) {
            float* at = sums + i + v * 16;
            store(at, fma(load(parts + i + v * 16), load(scales + v * 16), load(at)));
        }
}

// tile <- vector v of n <= 16 words of a panel of V vectors, as bf16.
template <class Load, int V> inline void widen_tile(const uint8_t* w, int v, int n, uint8_t* tile) {
    constexpr int ahead = 4096;
    w += v * Load::bytes;
    for (int i = 0; i < n; ++i, w += V * Load::bytes) {
        if ((i * V + v) % 2 == 0) __builtin_prefetch(w + ahead);
        _mm512_store_si512(tile + i * 64, Load::get(w));
    }
    for (int i = n; i < TILE_WORDS; ++i) _mm512_store_si512(tile + i * 64, _mm512_setzero_si512());
}

// sums [m][64] = m <= 16 rows times a panel with scales. The next tiles are widened while the current ones are
// multiplied.
template <class Load, int V>
inline void few_rows(const uint8_t* a, int m, const Tiling& tiling, const uint8_t* w, const float* scales,
                     float* sums) {
    constexpr int line = PANEL * 4;
    alignas(64) uint8_t tiles[2][V][TILE_BYTES];
    alignas(64) float parts[TILE_ROWS * PANEL];
    const auto width = [&](int from, int end) { return end - from < TILE_WORDS ? end - from : TILE_WORDS; };
    int end = tiling.block < tiling.words ? tiling.block : tiling.words;
    for (int v = 0; v < V; ++v) widen_tile<Load, V>(w, v, width(0, end), tiles[0][v]);
    for (int i = 0; i < m * PANEL; i += 16) store(sums + i, zero());
    configure(m);
    _tile_zero(0);
    if constexpr (V > 1) _tile_zero(1);
    if constexpr (V > 2) _tile_zero(2);
    if constexpr (V > 3) _tile_zero(3);
    int side = 0;
    for (int at = 0; at < tiling.words; side ^= 1, a += m * 64) {
        const int n = width(at, end), next = at + n;
        int next_end = end;
        if (next == end) next_end = end + tiling.block < tiling.words ? end + tiling.block : tiling.words;
        const int next_n = width(next, next_end);
        const uint8_t(&now)[V][TILE_BYTES] = tiles[side];
        uint8_t(&then)[V][TILE_BYTES] = tiles[side ^ 1];
        const uint8_t* source = w + int64_t(next) * V * Load::bytes;
        compiler_fence();
        _tile_loadd(4, a, 64);
        _tile_loadd(6, now[0], 64);
        _tile_dpbf16ps(0, 4, 6);
        widen_tile<Load, V>(source, 0, next_n, then[0]);
        if constexpr (V > 1) {
            _tile_loadd(7, now[1], 64);
            _tile_dpbf16ps(1, 4, 7);
            widen_tile<Load, V>(source, 1, next_n, then[1]);
        }
        if constexpr (V > 2) {
            _tile_loadd(6, now[2], 64);
            _tile_dpbf16ps(2, 4, 6);
            widen_tile<Load, V>(source, 2, next_n, then[2]);
        }
        if constexpr (V > 3) {
            _tile_loadd(7, now[3], 64);
            _tile_dpbf16ps(3, 4, 7);
            widen_tile<Load, V>(source, 3, next_n, then[3]);
        }
        if (next == end) {
            _tile_stored(0, parts, line);
            _tile_zero(0);
            if constexpr (V > 1) { _tile_stored(1, parts + 16, line); _tile_zero(1); }
            if constexpr (V > 2) { _tile_stored(2, parts + 32, line); _tile_zero(2); }
            if constexpr (V > 3) { _tile_stored(3, parts + 48, line); _tile_zero(3); }
            compiler_fence();
            add_scaled<V>(parts, m, scales, sums);
            scales += V * 16;
        }
        at = next;
        end = next_end;
    }
}

// sums [16 + m][64] (+)= 16 + m rows times one vector of outputs (Two: two vectors) of V.
template <int V, bool Two>
inline void two_tiles(const uint8_t* a, const uint8_t* low, int m, const Weights& b, int vector, float* sums,
                      bool fresh, Ahead& ahead) {
    constexpr int wide = V * 64, line = PANEL * 4;
    float *upper = sums + vector * 16, *lower = upper + TILE_ROWS * PANEL;
    if (fresh) {
        _tile_zero(0);
        _tile_zero(2);
        if constexpr (Two) { _tile_zero(1); _tile_zero(3); }
    } else {
        _tile_loadd(0, upper, line);
        _tile_loadd(2, lower, line);
        if constexpr (Two) { _tile_loadd(1, upper + 16, line); _tile_loadd(3, lower + 16, line); }
    }
    const uint8_t* w = b.data + vector * 64;
    for (int t = 0; t < b.tiles; ++t, w += 16 * wide, a += TILE_BYTES, low += m * 64) {
        ahead.step();
        _tile_loadd(6, w, wide);
        _tile_loadd(4, a, 64);
        _tile_dpbf16ps(0, 4, 6);
        if constexpr (Two) { _tile_loadd(7, w + 64, wide); _tile_dpbf16ps(1, 4, 7); }
        _tile_loadd(5, low, 64);
        _tile_dpbf16ps(2, 5, 6);
        if constexpr (Two) _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, upper, line);
    _tile_stored(2, lower, line);
    if constexpr (Two) { _tile_stored(1, upper + 16, line); _tile_stored(3, lower + 16, line); }
}

// sums [m][64] (+)= m <= 32 rows times a panel's tiles b. done: tiles of k before these.
template <int V>
inline void multiply(const uint8_t* a, int64_t a_row, int m, int done, const Weights& b, float* sums, bool fresh,
                     Ahead& ahead) {
    if (m <= TILE_ROWS) return one_tile<V>(a + int64_t(done) * m * 64, m, b, sums, fresh);
    const int rest = m - TILE_ROWS;
    const uint8_t *up = a + int64_t(done) * TILE_BYTES, *low = a + TILE_ROWS * a_row + int64_t(done) * rest * 64;
    two_tiles<V, (V > 1)>(up, low, rest, b, 0, sums, fresh, ahead);
    if constexpr (V > 2) two_tiles<V, (V > 3)>(up, low, rest, b, 2, sums, fresh, ahead);
}

// sums [rows][64] <- up to MOST_ROWS packed rows times one panel.
template <class Load, int V>
void tiles_product(const uint8_t* a, int rows, const Tiling& tiling, const uint8_t* w, const float* scales,
                   float* sums) {
    constexpr bool scaled = Load::bytes != 64;
    constexpr int chunk = CHUNK * TILE_WORDS, together = 2 * TILE_ROWS;
    if constexpr (scaled) {
        if (rows <= TILE_ROWS) return few_rows<Load, V>(a, rows, tiling, w, scales, sums);
        for (int i = 0; i < rows * PANEL; i += 16) store(sums + i, zero());
    }
    alignas(64) uint8_t scratch[CHUNK * V * TILE_BYTES];
    alignas(64) float parts[scaled ? MOST_ROWS * PANEL : 16];  // sums of a block of k that is not complete
    const int64_t a_row = int64_t(tiling.count) * 64;
    for (int block = 0, done = 0; block < tiling.words; block += tiling.block) {
        const int end = block + tiling.block < tiling.words ? block + tiling.block : tiling.words;
        for (int from = block, upto; from < end; from = upto) {
            upto = from + chunk < end && rows > TILE_ROWS ? from + chunk : end;
            // A last tile that is not full is done by itself.
            if (!scaled && upto - from > TILE_WORDS) upto -= (upto - from) % TILE_WORDS;
            const Weights b = weights_of<Load, V>(w, from, upto, scratch);
            const bool fresh = from == block, complete = upto == end;
            const int steps = (rows + together - 1) / together * ((V + 1) / 2) * b.tiles;
            const int lines = b.tiles * TILE_WORDS * V * Load::bytes / 64;
            Ahead ahead{w + int64_t(upto) * V * Load::bytes, (lines + steps - 1) / steps};
            compiler_fence();
            for (int i = 0; i < rows; i += together) {
                const int m = rows - i < together ? rows - i : together;
                configure(m);
                if constexpr (scaled) {
                    float* part = parts + (fresh && complete ? 0 : i * PANEL);
                    multiply<V>(a + i * a_row, a_row, m, done, b, part, fresh, ahead);
                    compiler_fence();
                    if (complete) add_scaled<V>(part, m, scales, sums + i * PANEL);
                } else {
                    multiply<V>(a + i * a_row, a_row, m, done, b, sums + i * PANEL, fresh, ahead);
                }
            }
            compiler_fence();
            done += b.tiles;
        }
        if constexpr (scaled) scales += V * 16;
    }
}

using TilesProduct = void (*)(const uint8_t*, int, const Tiling&, const uint8_t*, const float*, float*);

#define NX_V(L) {tiles_product<L, 1>, tiles_product<L, 2>, tiles_product<L, 3>, tiles_product<L, 4>}
const TilesProduct TILES[3][4] = {NX_V(Bf16Line), NX_V(E4m3Line), NX_V(Int8Line)};
#undef NX_V

// As chains_by_panel, for packed rows. from: the first row of a run, or a multiple of 16 after it.
template <class Done>
inline void tiles_by_panel(const Inputs& x, int from, int to, const NxWeight& w, const Panel& panel, const Done& done) {
    alignas(64) float sums[MOST_ROWS * PANEL];
    const Tiling tiling(w);
    for (int i = from; i < to; i += MOST_ROWS) {
        const int m = to - i < MOST_ROWS ? to - i : MOST_ROWS;
        TILES[w.kind - 1][panel.vectors - 1](x.tiles(i), m, tiling, panel.data, panel.scales, sums);
        for (int j = 0; j < m; ++j) done(i + j, panel.first, panel.vectors * 16, sums + j * PANEL);
    }
}

}  // namespace
