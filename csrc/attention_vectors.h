// A block of attention in vector registers, 16 queries at a time. If the level has dot products of bf16 pairs,
// it uses those. Otherwise it uses f32 multiply-adds in the same order, with the queries and weights widened
// once for all keys.
#pragma once
#include <type_traits>

#include "latent.h"

namespace {

constexpr int QUERIES = 16;  // maximum of query vectors (one head of a row) in a task
constexpr int LEAST_QUERIES = QUERIES;  // minimum to which tasks are cut

struct Scratch {
    alignas(64) float scores[QUERIES][KEYS];
#if defined(__AVX512BF16__)
    alignas(64) uint32_t weights[QUERIES][KEYS / 2];  // pairs of bf16
#else
    alignas(64) float weights[QUERIES][KEYS];         // exact in bf16
#endif
    const uint16_t* queries[QUERIES];
    const uint16_t* keys[KEYS + 4];
    int words;   // in a query and in a key
    int key_at;  // first column of the key in an entry
    std::vector<Line> sums, wide, gathered;  // gathered [keys][a head's entry] bf16
};

// Takes n queries q [n][width].
inline void take_queries(Scratch& s, const uint16_t* q, int n, int width) {
    for (int i = 0; i < n; ++i) s.queries[i] = q + int64_t(i) * width;
    s.words = width / 2;
#if !defined(__AVX512BF16__)
    float* to = room(s.wide, int64_t(n) * width);  // for each 16 pairs: the even elements, then the odd ones
    for (int64_t at = 0; at < int64_t(n) * width; at += 32) {
        const vi pairs = words(q + at);
        store(to + at, low(pairs));
        store(to + at + 16, high(pairs));
    }
#endif
}

// Takes the keys at positions begin .. begin + count of the span.
inline void take_keys(Scratch& s, const Span& span, const Cache& cache, const NxHeads& heads, int begin, int count) {
    s.key_at = heads.key_at;
    int j = 0;
    for (const int paged = span.fork - begin < count ? span.fork - begin : count; j < paged;) {
        // Page by page: a division for each key would cost as much as its scores.
        const uint16_t* entry = cache.entry(span, begin + j);
        const int rest = cache.page - (begin + j) % cache.page, upto = j + rest < paged ? j + rest : paged;
        for (; j < upto; ++j, entry += cache.width) s.keys[j] = entry;
    }
    for (; j < count; ++j) s.keys[j] = cache.entry(span, begin + j);
    if (cache.width != heads.stride) {
        // One head's part of long entries: these lines are one entry apart, so they fall into few sets of a CPU
        // cache, and they are read again for all queries and columns. So they are copied together first.
        const int n = heads.key_at + heads.key;
        uint16_t* to = reinterpret_cast<uint16_t*>(room(s.gathered, int64_t(KEYS) * n / 2));
        for (int i = 0; i < count; ++i) {
            for (int c = 0; c < n; c += 32, to += 32) memcpy(to, s.keys[i] + c, 64);
            s.keys[i] = to - n;
        }
    }
    for (; j < ((count + 3) & ~3); ++j) s.keys[j] = s.keys[count - 1];
}

#if defined(__AVX512BF16__)
constexpr int SCORE_QUERIES = 4, SCORE_KEYS = 4, KEYS_AT_ONCE = 4;
#elif defined(__AVX512F__)
constexpr int SCORE_QUERIES = 8, SCORE_KEYS = 2, KEYS_AT_ONCE = 2;  // a key's words are widened once for all of them
#else
constexpr int SCORE_QUERIES = 4, SCORE_KEYS = 4, KEYS_AT_ONCE = 2;  // these sums, part by part, fit into 16 registers
#endif

// to [A][SCORE_KEYS] <- lane-wise products of the queries i[0], i[1], ... with the keys from j on.
template <int A, int B> inline void score_some(const Scratch& s, const int* i, int j, vf* to) {
    const uint16_t* keys[B];
    NX_UNROLL for (int b = 0; b < B; ++b) keys[b] = s.keys[j + b] + s.key_at;
#if defined(__AVX512BF16__)
    vf acc[A][B];
    NX_UNROLL for (int a = 0; a < A; ++a) NX_UNROLL for (int b = 0; b < B; ++b) acc[a][b] = zero();
    const uint16_t* queries[A];
    NX_UNROLL for (int a = 0; a < A; ++a) queries[a] = s.queries[i[a]];
    for (int w = 0; w < s.words; w += 16) {
        vi k[B];
        NX_UNROLL for (int b = 0; b < B; ++b) k[b] = words(keys[b] + 2 * w);
        NX_UNROLL for (int a = 0; a < A; ++a) {
            const vi q = words(queries[a] + 2 * w);
            NX_UNROLL for (int b = 0; b < B; ++b) acc[a][b] = dot2(acc[a][b], q, k[b]);
        }
    }
    NX_UNROLL for (int a = 0; a < A; ++a)
        NX_UNROLL for (int b = 0; b < B; ++b) to[a * SCORE_KEYS + b] = acc[a][b];
#else
    const float* queries[A];
    NX_UNROLL for (int a = 0; a < A; ++a) queries[a] = s.wide.data()->values + int64_t(i[a]) * 2 * s.words;
    for (int p = 0; p < PARTS; ++p) {
        part acc[A][B];
        NX_UNROLL for (int a = 0; a < A; ++a) NX_UNROLL for (int b = 0; b < B; ++b) acc[a][b] = zero_part();
        for (int w = 0; w < 2 * s.words; w += 32) {
            part even[B], odd[B];
            NX_UNROLL for (int b = 0; b < B; ++b) halves(keys[b] + w, p, even[b], odd[b]);
            NX_UNROLL for (int a = 0; a < A; ++a) {
                const part first = load_part(queries[a] + w, p), second = load_part(queries[a] + w + 16, p);
                NX_UNROLL for (int b = 0; b < B; ++b) {
                    add_product(acc[a][b], first, even[b]);
                    add_product(acc[a][b], second, odd[b]);
                }
            }
        }
        NX_UNROLL for (int a = 0; a < A; ++a)
            NX_UNROLL for (int b = 0; b < B; ++b) part_of(to[a * SCORE_KEYS + b], p) = acc[a][b];
    }
#endif
}

// s.scores <- the scores of up to 16 queries over `count` keys.
inline void score_block(Scratch& s, int queries, int count) {
    constexpr int A = SCORE_QUERIES, B = SCORE_KEYS;
    for (int i = 0; i < queries; i += A) {
        int number[A];
        for (int a = 0; a < A; ++a) number[a] = i + a < queries ? i + a : queries - 1;
        for (int j = 0; j < count; j += B) {
            vf acc[A * B];
            for (int b = 0; b < B; b += KEYS_AT_ONCE) score_some<A, KEYS_AT_ONCE>(s, number, j + b, acc + b);
            alignas(64) float out[A * B];
            store(out, sums(acc));
            for (int a = 0; a < A && i + a < queries; ++a) memcpy(&s.scores[i + a][j], out + B * a, 4 * B);
        }
    }
}

// weights <- the exponentials of one query's scores, in bf16. Keys from `count` on have weight 0.
template <class Weight> inline Softmax soften(float* scores, int count, Weight* weights) {
    const vf never = splat(-INFINITY);
    for (int j = count; j < KEYS; ++j) scores[j] = -INFINITY;
    vf top = never;
    const int used = (count + 31) / 32 * 32;
    for (int j = 0; j < used; j += 16) top = max(top, load(scores + j));
    const float m = largest(top);
    if (m == -INFINITY) return {m, 0.f};
    if (m != m) return {m, m};  // NaN: the query's result is NaN with any weights
    vf total = zero();
    for (int j = 0; j < used; j += 16) {
        alignas(32) uint16_t halves[16];
        store_bf16(halves, exp(sub(load(scores + j), splat(m))));
        const vf rounded = widen_bf16(halves);
        if constexpr (std::is_same_v<Weight, float>) store(weights + j, rounded);
        else memcpy(weights + j / 2, halves, sizeof halves);
        total = add(total, rounded);  // of the rounded weights, by which the values are multiplied
    }
    return {m, sum(total)};
}

#if defined(__AVX512F__)
constexpr int MIX_QUERIES = 8;
#else
constexpr int MIX_QUERIES = 4;  // with two registers of sums each, of 16
#endif

// out, 32 columns of M queries <- weights times values.
template <int M>
inline void mix_rows(const Scratch& s, int i, int pairs, int rank, int column, float* out) {
#if defined(__AVX512BF16__)
    vf acc[M][2];
    NX_UNROLL for (int m = 0; m < M; ++m) acc[m][0] = acc[m][1] = zero();
    for (int j = 0; j < pairs; ++j) {
        vi first, second;
        pair_rows(s.keys[2 * j] + column, s.keys[2 * j + 1] + column, first, second);
        NX_UNROLL for (int m = 0; m < M; ++m) {
            const vi weight = splat_word(s.weights[i + m][j]);
            acc[m][0] = dot2(acc[m][0], weight, first);
            acc[m][1] = dot2(acc[m][1], weight, second);
        }
    }
    NX_UNROLL for (int m = 0; m < M; ++m) {
        store(out + (i + m) * rank + column, acc[m][0]);
        store(out + (i + m) * rank + column + 16, acc[m][1]);
    }
#else
    for (int p = 0; p < PARTS; ++p) {
        part acc[M][2];
        NX_UNROLL for (int m = 0; m < M; ++m) acc[m][0] = acc[m][1] = zero_part();
        for (int j = 0; j < 2 * pairs; ++j) {
            part first, second;
            halves(s.keys[j] + column, p, first, second);
            NX_UNROLL for (int m = 0; m < M; ++m) {
                const part weight = splat_part(s.weights[i + m][j]);
                add_product(acc[m][0], weight, first);
                add_product(acc[m][1], weight, second);
            }
        }
        NX_UNROLL for (int m = 0; m < M; ++m) {
            store_part(out + (i + m) * rank + column, p, acc[m][0]);
            store_part(out + (i + m) * rank + column + 16, p, acc[m][1]);
        }
    }
#endif
}

// out [queries][rank] <- weights times values.
inline void mix_block(const Scratch& s, int queries, int count, int rank, float* out) {
    const int pairs = (count + 1) / 2;
    for (int i = 0; i < queries; i += MIX_QUERIES)
        for (int column = 0; column < rank; column += 32) {
            switch (queries - i < MIX_QUERIES ? queries - i : MIX_QUERIES) {
                case 1: mix_rows<1>(s, i, pairs, rank, column, out); break;
                case 2: mix_rows<2>(s, i, pairs, rank, column, out); break;
                case 3: mix_rows<3>(s, i, pairs, rank, column, out); break;
                case 4: mix_rows<4>(s, i, pairs, rank, column, out); break;
#if defined(__AVX512F__)
                case 5: mix_rows<5>(s, i, pairs, rank, column, out); break;
                case 6: mix_rows<6>(s, i, pairs, rank, column, out); break;
                case 7: mix_rows<7>(s, i, pairs, rank, column, out); break;
                default: mix_rows<8>(s, i, pairs, rank, column, out); break;
#endif
            }
        }
}

// Attention of the n queries that were taken, from query `from` of the span on, over the block of keys that was
// taken, which begins at position `begin`. out [n][rank]: columns in the order that store_columns restores.
inline void attend_block(Scratch& s, const Span& span, int heads, int from, int n, int begin, int rank, float* out,
                         Softmax* found) {
    const int count = keys_seen(span, from + n - 1, heads, begin);
    score_block(s, n, count);
    for (int i = 0; i < n; ++i) {
        const int open = keys_seen(span, from + i, heads, begin);
        // Weights past `open` have to be 0 as far as the block's values are read.
        found[i] = soften(s.scores[i], open, s.weights[i]);
        const int written = found[i].total == 0.f ? 0 : (open + 31) / 32 * 32, all = (count + 31) / 32 * 32;
        constexpr int each = sizeof s.weights[0] / sizeof s.weights[0][0];  // elements for KEYS keys
        for (int j = written * each / KEYS; j < all * each / KEYS; ++j) s.weights[i][j] = 0;
    }
    mix_block(s, n, count, rank, out);
}

}  // namespace
