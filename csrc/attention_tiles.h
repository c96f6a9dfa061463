// A block of attention in AMX tiles.
//
// Scores: 16 keys are a tile in the form in which they are in the cache. 16 queries become a tile when their
// pairs of columns are transposed, so the product is [keys][queries]. It is transposed back for the softmax.
// Values: 32 weights of a query are a row of a tile. 32 keys by 16 columns become a tile when pairs of keys are
// interleaved, which is done once for all queries of a task.
//
// A query is a column of one product and a row of the other, and no other query enters its sums. The sums of a
// tile have one order (tiles.h), keys are in tiles by absolute position, and tiles of zeros add nothing. So a
// query has the same bits alone and beside others.
#pragma once
#include "latent.h"
#include "tiles.h"

namespace {

constexpr int QUERIES = 128;  // maximum of query vectors (one head of a row) in a task
constexpr int LEAST_QUERIES = 32;  // minimum to which tasks are cut: this many are computed together
constexpr int TILE_KEYS = 2 * TILE_WORDS;  // keys in a tile of weights or values

struct KeyTile {
    const uint16_t* data;
    int64_t stride;  // bytes
};

struct Scratch {
    alignas(64) float product[4][TILE_ROWS * 16];
    alignas(64) float scores[LEAST_QUERIES][KEYS];
    alignas(64) uint16_t weights[LEAST_QUERIES][KEYS];  // bf16
    KeyTile keys[KEYS / TILE_ROWS];
    std::vector<Line> queries;   // [16 queries][tiles of a key][pairs of columns] lines
    std::vector<Line> gathered;  // [keys][a head's entry] bf16: tiles of keys that are not contiguous in the cache
    std::vector<Line> values;    // [32 keys][columns / 16][pairs of keys] lines, if `once`
    std::vector<Line> sums;
    int taken, steps;  // number of queries; tiles of a key
    int key_at;        // first column of the key in an entry
    int count;         // keys
    bool once;         // interleave values when keys are taken, for several readers; else when they are read
};

// Transposes: out[i * stride + 0 .. 16] <- words i of row(0) .. row(15), for i < n rounded up to a multiple of
// 4.
template <class Row> inline void turn(const Row& row, int n, float* out, int64_t stride) {
    for (int i = 0; i < n; i += 4) {
        vf a[4];  // lane l of 128 bits: words i .. i + 4 of row 4 l + j
        NX_UNROLL for (int j = 0; j < 4; ++j) {
            const vf one = _mm512_castps128_ps512(_mm_loadu_ps(row(j) + i));
            const vf two = _mm512_mask_broadcast_f32x4(one, 0x00f0, _mm_loadu_ps(row(j + 4) + i));
            const vf three = _mm512_mask_broadcast_f32x4(two, 0x0f00, _mm_loadu_ps(row(j + 8) + i));
            a[j] = _mm512_mask_broadcast_f32x4(three, 0xf000, _mm_loadu_ps(row(j + 12) + i));
        }
        const __m512d p = _mm512_castps_pd(_mm512_unpacklo_ps(a[0], a[1]));
        const __m512d q = _mm512_castps_pd(_mm512_unpackhi_ps(a[0], a[1]));
        const __m512d r = _mm512_castps_pd(_mm512_unpacklo_ps(a[2], a[3]));
        const __m512d s = _mm512_castps_pd(_mm512_unpackhi_ps(a[2], a[3]));
        store(out + i * stride, _mm512_castpd_ps(_mm512_unpacklo_pd(p, r)));
        store(out + (i + 1) * stride, _mm512_castpd_ps(_mm512_unpackhi_pd(p, r)));
        store(out + (i + 2) * stride, _mm512_castpd_ps(_mm512_unpacklo_pd(q, s)));
        store(out + (i + 3) * stride, _mm512_castpd_ps(_mm512_unpackhi_pd(q, s)));
    }
}

// Transposes n queries q [n][width] into tiles. The rows that fill up the last 16 are copies of the last query;
// no result of theirs is used.
inline void take_queries(Scratch& s, const uint16_t* q, int n, int width) {
    s.taken = n;
    s.steps = width / TILE_KEYS;
    float* to = room(s.queries, int64_t(n + TILE_ROWS - 1) / TILE_ROWS * s.steps * 256);
    for (int i = 0; i < n; i += TILE_ROWS)
        for (int k = 0; k < s.steps; ++k, to += 256)
            turn([&](int j) {
                const int query = i + j < n ? i + j : n - 1;
                return reinterpret_cast<const float*>(q + int64_t(query) * width) + k * TILE_WORDS;
            }, TILE_WORDS, to, TILE_WORDS);
}

// to [columns / 16][16 pairs of keys] lines <- columns [from, from + columns) of the values of 32 keys of the
// block, from key 32 * tile on. Keys from `count` on are taken as zeros, whatever is in memory.
inline void interleave(const Scratch& s, int tile, int from, int columns, float* to) {
    for (int i = 0; i < TILE_KEYS; i += 2, to += 16) {
        const int key = tile * TILE_KEYS + i;
        const KeyTile& keys = s.keys[key / TILE_ROWS];
        const uint16_t* x = keys.data + i % TILE_ROWS * (keys.stride / 2) + from;
        const uint16_t* y = x + keys.stride / 2;
        const __mmask32 one = key < s.count ? ~0u : 0, two = key + 1 < s.count ? ~0u : 0;
        for (int c = 0; c < columns; c += 32) {
            const vi a = _mm512_maskz_loadu_epi16(one, x + c), b = _mm512_maskz_loadu_epi16(two, y + c);
            _mm512_store_si512(to + c * TILE_WORDS, _mm512_unpacklo_epi16(a, b));
            _mm512_store_si512(to + (c + 16) * TILE_WORDS, _mm512_unpackhi_epi16(a, b));
        }
    }
}

// Takes the keys at positions begin .. begin + count of the span. begin: a multiple of 32.
inline void take_keys(Scratch& s, const Span& span, const Cache& cache, const NxHeads& heads, int begin, int count) {
    const int width = heads.key_at + heads.key, rank = heads.value, tiles = (count + TILE_KEYS - 1) / TILE_KEYS;
    const bool one_head = cache.width == heads.stride;  // else a tile's rows would fall into few sets of a CPU cache
    s.key_at = heads.key_at;
    uint16_t* gathered = reinterpret_cast<uint16_t*>(room(s.gathered, int64_t(tiles) * TILE_KEYS * width / 2));
    for (int j = 0; j < tiles * TILE_KEYS; j += TILE_ROWS) {
        const int n = count - j < TILE_ROWS ? count - j : TILE_ROWS;
        KeyTile& tile = s.keys[j / TILE_ROWS];
        if (n > 0 && one_head && cache.page % TILE_ROWS == 0 && begin + j + TILE_ROWS <= span.fork) {
            tile = {cache.entry(span, begin + j), int64_t(cache.width) * 2};
            continue;
        }
        uint16_t* to = gathered + int64_t(j) * width;
        tile = {to, int64_t(width) * 2};
        for (int i = 0; i < n; ++i)
            memcpy(to + int64_t(i) * width, cache.entry(span, begin + j + i), size_t(width) * 2);
        for (int i = n < 0 ? 0 : n; i < TILE_ROWS; ++i) memset(to + int64_t(i) * width, 0, size_t(width) * 2);
    }
    s.count = count;
    s.once = s.taken > LEAST_QUERIES;
    if (!s.once) return;
    float* values = room(s.values, int64_t(tiles) * TILE_WORDS * rank);
    for (int t = 0; t < tiles; ++t) interleave(s, t, 0, rank, values + int64_t(t) * TILE_WORDS * rank);
}

// s.scores <- the scores of up to 16 queries (Two: 17 to 32) over `count` keys.
template <bool Two> inline void score_block(Scratch& s, const float* q, int queries, int count) {
    const int tiles = (count + TILE_ROWS - 1) / TILE_ROWS, last = tiles - 1;
    const auto turned = [&](int product, int tile, int from, int n) {
        const float* rows = s.product[product];
        turn([&](int j) { return rows + j * 16; }, n, &s.scores[from][tile * TILE_ROWS], KEYS);
    };
    for (int j = 0; j < tiles; j += Two ? 2 : 4) {
        const KeyTile &a = s.keys[j], &b = s.keys[j + 1 < last ? j + 1 : last];
        const KeyTile &c = s.keys[j + 2 < last ? j + 2 : last], &d = s.keys[j + 3 < last ? j + 3 : last];
        compiler_fence();
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
        for (int k = 0; k < s.steps; ++k) {
            const float* pairs = q + k * 256;
            const int at = s.key_at + k * TILE_KEYS;
            _tile_loadd(6, pairs, 64);
            _tile_loadd(4, a.data + at, a.stride);
            _tile_dpbf16ps(0, 4, 6);
            _tile_loadd(5, b.data + at, b.stride);
            if constexpr (Two) {
                _tile_loadd(7, pairs + s.steps * 256, 64);
                _tile_dpbf16ps(1, 4, 7);
                _tile_dpbf16ps(2, 5, 6);
                _tile_dpbf16ps(3, 5, 7);
            } else {
                _tile_dpbf16ps(1, 5, 6);
                _tile_loadd(4, c.data + at, c.stride);
                _tile_dpbf16ps(2, 4, 6);
                _tile_loadd(5, d.data + at, d.stride);
                _tile_dpbf16ps(3, 5, 6);
            }
        }
        _tile_stored(0, s.product[0], 64);
        _tile_stored(1, s.product[1], 64);
        _tile_stored(2, s.product[2], 64);
        _tile_stored(3, s.product[3], 64);
        compiler_fence();
        if constexpr (Two) {
            turned(0, j, 0, TILE_ROWS);
            turned(1, j, TILE_ROWS, queries - TILE_ROWS);
            if (j == last) break;
            turned(2, j + 1, 0, TILE_ROWS);
            turned(3, j + 1, TILE_ROWS, queries - TILE_ROWS);
        } else {
            for (int t = 0; t < 4 && j + t <= last; ++t) turned(t, j + t, 0, queries);
        }
    }
}

// e**x for x <= 0, with a relative error below 3e-7 + 1e-7 |x|.
inline vf exp_below(vf x) {
    const vf t = max(mul(x, splat(1.44269504088896341f)), splat(-200.f));
    const vf n = _mm512_roundscale_ps(t, 8), r = sub(t, n);
    vf p = splat(1.3333558e-3f);
    p = fma(p, r, splat(9.6181291e-3f));
    p = fma(p, r, splat(5.5504109e-2f));
    p = fma(p, r, splat(2.4022651e-1f));
    p = fma(p, r, splat(6.9314718e-1f));
    p = fma(p, r, splat(1.f));
    return _mm512_scalef_ps(p, n);
}

// weights <- the softmax weights of the first `open` scores, then zeros up to `padded`, a multiple of 32.
inline Softmax soften(const float* scores, int open, int padded, uint16_t* weights) {
    const vf never = splat(-INFINITY);
    const int full = open / TILE_KEYS * TILE_KEYS;
    const uint32_t rest = (1u << (open - full)) - 1;
    const __mmask16 low = __mmask16(rest), high = __mmask16(rest >> 16);
    vf top = never, other = never;
    for (int j = 0; j < full; j += TILE_KEYS) {
        top = max(top, load(scores + j));
        other = max(other, load(scores + j + 16));
    }
    if (rest) {
        top = _mm512_mask_max_ps(top, low, top, load(scores + full));
        other = _mm512_mask_max_ps(other, high, other, load(scores + full + 16));
    }
    const float m = largest(max(top, other));
    if (m == -INFINITY) {
        for (int j = 0; j < padded; j += TILE_KEYS) _mm512_storeu_si512(weights + j, _mm512_setzero_si512());
        return {m, 0.f};
    }
    const vf best = splat(m);
    const vi ones = splat_word(0x3f803f80);
    vf total = zero();  // of the rounded weights, by which the values are multiplied
    const auto put = [&](int j, vf a, vf b) {
        const vi pair = (vi)_mm512_cvtne2ps_pbh(b, a);
        _mm512_store_si512(weights + j, pair);
        total = dot2(total, pair, ones);
    };
    for (int j = 0; j < full; j += TILE_KEYS)
        put(j, exp_below(sub(load(scores + j), best)), exp_below(sub(load(scores + j + 16), best)));
    int written = full;
    if (rest) {
        put(full, _mm512_maskz_mov_ps(low, exp_below(sub(load(scores + full), best))),
            _mm512_maskz_mov_ps(high, exp_below(sub(load(scores + full + 16), best))));
        written += TILE_KEYS;
    }
    for (int j = written; j < padded; j += TILE_KEYS) _mm512_store_si512(weights + j, _mm512_setzero_si512());
    return {m, sum(total)};
}

// out [16][rank] (Two: [32][rank]), columns [from, from + 16 Columns) <- weights times the values of `tiles`
// times 32 keys.
template <bool Two, int Columns> inline void mix_columns(const Scratch& s, int tiles, int rank, int from, float* out) {
    alignas(64) float own[2][Columns * 256];
    const int64_t line = int64_t(rank) * 4;
    compiler_fence();
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int t = 0; t < tiles; ++t) {
        const float* v = own[t % 2];
        if (s.once) v = s.values.data()->values + (t * rank + from) * TILE_WORDS;
        else interleave(s, t, from, Columns * 16, own[t % 2]);
        compiler_fence();
        _tile_loadd(6, v, 64);
        _tile_loadd(4, s.weights[0] + t * TILE_KEYS, KEYS * 2);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, v + 256, 64);
        _tile_dpbf16ps(1, 4, 7);
        if constexpr (Two) {
            _tile_loadd(5, s.weights[TILE_ROWS] + t * TILE_KEYS, KEYS * 2);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        } else if constexpr (Columns > 2) {
            _tile_loadd(6, v + 512, 64);
            _tile_dpbf16ps(2, 4, 6);
            _tile_loadd(7, v + 768, 64);
            _tile_dpbf16ps(3, 4, 7);
        }
    }
    _tile_stored(0, out + from, line);
    _tile_stored(1, out + from + 16, line);
    if constexpr (Two) {
        _tile_stored(2, out + TILE_ROWS * rank + from, line);
        _tile_stored(3, out + TILE_ROWS * rank + from + 16, line);
    } else if constexpr (Columns > 2) {
        _tile_stored(2, out + from + 32, line);
        _tile_stored(3, out + from + 48, line);
    }
    compiler_fence();
}

// Attention of the n queries that were taken, from query `from` of the span on, over the block of keys that was
// taken, which begins at position `begin`. out [n rounded up to a multiple of 16][rank]: columns in the order
// that store_columns restores.
inline void attend_block(Scratch& s, const Span& span, int heads, int from, int n, int begin, int rank, float* out,
                         Softmax* found) {
    configure(2 * TILE_ROWS);
    const float* q = s.queries.data()->values;
    for (int u = 0; u < n; u += LEAST_QUERIES, out += LEAST_QUERIES * rank, q += 2 * s.steps * 256) {
        const int m = n - u < LEAST_QUERIES ? n - u : LEAST_QUERIES;
        const int count = keys_seen(span, from + u + m - 1, heads, begin);
        const int tiles = (count + TILE_KEYS - 1) / TILE_KEYS;
        const bool two = m > TILE_ROWS;
        if (two) score_block<true>(s, q, m, count); else score_block<false>(s, q, m, count);
        for (int i = 0; i < m; ++i) {
            const int open = keys_seen(span, from + u + i, heads, begin);
            found[u + i] = soften(s.scores[i], open, tiles * TILE_KEYS, s.weights[i]);
        }
        if (tiles == 0) continue;
        for (int c = 0; c < rank; c += two ? 32 : 64) {
            if (two) mix_columns<true, 2>(s, tiles, rank, c, out);
            else if (c + 64 <= rank) mix_columns<false, 4>(s, tiles, rank, c, out);
            else mix_columns<false, 2>(s, tiles, rank, c, out);
        }
    }
}

}  // namespace
