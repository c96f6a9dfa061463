// Absorbed multi-head latent attention over the paged cache (arXiv 2405.04434).
//
// A cache entry is [latent (R) | rotated key (P)], D = R + P, padded with zeros to a multiple of 32. It is the
// key of every head, and its first R columns are the value. Keys are taken in absolute blocks of 256
// positions: scores, maximum, exponentials, their sum and the weighted values of a block depend on the
// query and the block alone, and blocks are combined from the first to the last. So a query's bits depend
// neither on who computes which block nor on the queries beside it. A node of a draft tree is a span of its own,
// whose last keys lie in slots that are listed: it meets the same keys at the same positions as it would in a
// chain, so its bits do not depend on the tree either.
//
// (Block-wise softmax: Milakov and Gimelshein, arXiv 1805.02867.)
#pragma once
#include "pool.h"
#include "simd.h"

namespace {

constexpr int KEYS = 256;   // positions of a block; nextn.ops.base.KV_BLOCK
constexpr int QUERIES = 16; // query vectors (a row's head) worked on together
constexpr int MOST_RANK = 1024;  // of the latent, in buffers on the stack

struct Span {           // of one request: rows [first, first + rows) at positions start, start + 1, ...
    int32_t first, rows, start;
    const int32_t* pages;
    int32_t fork;         // from this position on slots are path's, one for each; INT32_MAX: all are the pages'
    const int32_t* path;
};

struct Cache {
    uint16_t* data;  // [slots, width] bf16
    int32_t width, page;
    uint16_t* entry(const Span& s, int position) const {
        if (position >= s.fork) return data + int64_t(s.path[position - s.fork]) * width;
        return data + (int64_t(s.pages[position / page]) * page + position % page) * width;
    }
};

struct Softmax {  // of one query over one block
    float top, total;
};

struct Scratch {
    alignas(64) float scores[QUERIES][KEYS];
    alignas(64) uint32_t weights[QUERIES][KEYS / 2];  // pairs of bf16
    const uint16_t* keys[KEYS + 4];
};

// Scores of up to 16 queries over `count` keys. q: pointers to D bf16. width: D in words of 32 bits.
inline void score_block(const uint16_t* const* q, int queries, int count, int words_wide, Scratch& s) {
    for (int i = 0; i < queries; i += 4) {
        const uint16_t* qs[4];
        for (int a = 0; a < 4; ++a) qs[a] = q[i + a < queries ? i + a : queries - 1];
        for (int j = 0; j < count; j += 4) {
            vf acc[16];
            NX_UNROLL for (int a = 0; a < 16; ++a) acc[a] = zero();
            for (int w = 0; w < words_wide; w += 16) {
                vi k[4];
                NX_UNROLL for (int b = 0; b < 4; ++b) k[b] = words(s.keys[j + b] + 2 * w);
                NX_UNROLL for (int a = 0; a < 4; ++a) {
                    const vi qa = words(qs[a] + 2 * w);
                    NX_UNROLL for (int b = 0; b < 4; ++b) acc[4 * a + b] = dot2(acc[4 * a + b], qa, k[b]);
                }
            }
            alignas(64) float out[16];
            store(out, sums(acc));
            for (int a = 0; a < 4 && i + a < queries; ++a) memcpy(&s.scores[i + a][j], out + 4 * a, 16);
        }
    }
}

// Exponentials of one query's scores in place as pairs of bf16 weights; keys from `count` on weigh nothing.
inline Softmax soften(float* scores, int count, uint32_t* weights) {
    const vf never = splat(-INFINITY);
    for (int j = count; j < KEYS; ++j) scores[j] = -INFINITY;
    vf top = never;
    const int used = (count + 31) / 32 * 32;
    for (int j = 0; j < used; j += 16) top = max(top, load(scores + j));
    const float m = largest(top);
    if (m == -INFINITY) return {m, 0.f};
    uint16_t* w = reinterpret_cast<uint16_t*>(weights);
    vf total = zero();
    for (int j = 0; j < used; j += 16) {
        const vf x = load(scores + j);
        store_bf16(w + j, where_seen(x, exp(sub(x, splat(m)))));
        total = add(total, widen_bf16(w + j));  // the sum of what the values are multiplied by
    }
    return {m, sum(total)};
}

template <int M>
inline void mix_rows(const Scratch& s, int i, int pairs, int column, float* const* out) {
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
    NX_UNROLL for (int m = 0; m < M; ++m) store_columns(out[m] + column, acc[m][0], acc[m][1]);
}

// out[q] [R] <- weights times values, R a multiple of 32 as stored.
inline void mix_block(const Scratch& s, int queries, int count, int rank, float* const* out) {
    const int pairs = (count + 1) / 2;
    for (int i = 0; i < queries; i += 8)
        for (int column = 0; column < rank; column += 32) {
            switch (queries - i < 8 ? queries - i : 8) {
                case 1: mix_rows<1>(s, i, pairs, column, out + i); break;
                case 2: mix_rows<2>(s, i, pairs, column, out + i); break;
                case 3: mix_rows<3>(s, i, pairs, column, out + i); break;
                case 4: mix_rows<4>(s, i, pairs, column, out + i); break;
                case 5: mix_rows<5>(s, i, pairs, column, out + i); break;
                case 6: mix_rows<6>(s, i, pairs, column, out + i); break;
                case 7: mix_rows<7>(s, i, pairs, column, out + i); break;
                default: mix_rows<8>(s, i, pairs, column, out + i); break;
            }
        }
}

// Queries [from, from + n) of a span (query = row * heads + head) over one block of keys.
// q [rows of the batch][heads][width] bf16; out: n pointers to `rank` floats; found: n.
inline void attend_block(const Span& span, const Cache& cache, const uint16_t* q, int heads, int rank, int from,
                         int n, int block, Scratch& s, float* const* out, Softmax* found) {
    const int begin = block * KEYS, end = span.start + span.rows;
    const int count = end - begin < KEYS ? end - begin : KEYS;
    int j = 0;
    for (const int paged = span.fork - begin < count ? span.fork - begin : count; j < paged;) {
        // Page by page: a division for each key would cost as much as its scores.
        const uint16_t* entry = cache.entry(span, begin + j);
        const int rest = cache.page - (begin + j) % cache.page, upto = j + rest < paged ? j + rest : paged;
        for (; j < upto; ++j, entry += cache.width) s.keys[j] = entry;
    }
    for (; j < count; ++j) s.keys[j] = cache.entry(span, begin + j);
    for (; j < ((count + 3) & ~3); ++j) s.keys[j] = s.keys[count - 1];
    const uint16_t* queries[QUERIES] = {};
    for (int i = 0; i < n; ++i) queries[i] = q + (int64_t(span.first) * heads + from + i) * cache.width;
    score_block(queries, n, count, cache.width / 2, s);
    for (int i = 0; i < n; ++i) {
        const int row = (from + i) / heads;
        int open = count;
        if (span.start + row + 1 - begin < count) {
            open = span.start + row + 1 - begin;
            if (open < 0) open = 0;
        }
        // Weights past `open` must be 0 as far as the block's values are read.
        found[i] = soften(s.scores[i], open, s.weights[i]);
        const int written = found[i].total == 0.f ? 0 : (open + 31) / 32 * 32;
        for (int j = written / 2; j < (count + 31) / 32 * 16; ++j) s.weights[i][j] = 0;
    }
    mix_block(s, n, count, rank, out);
}

// acc, state <- those of the blocks so far and one more.
inline void combine(float* acc, Softmax& state, const float* part, const Softmax& found, int rank) {
    if (found.total == 0.f) return;
    if (state.total == 0.f) {
        state = found;
        memcpy(acc, part, size_t(rank) * 4);
        return;
    }
    alignas(64) float gap[16] = {};
    const float top = state.top > found.top ? state.top : found.top;
    gap[0] = state.top - top;
    gap[1] = found.top - top;
    alignas(64) float scale[16];
    store(scale, exp(load(gap)));
    const float old_scale = state.top == top ? 1.f : scale[0], new_scale = found.top == top ? 1.f : scale[1];
    const vf a = splat(old_scale), b = splat(new_scale);
    for (int c = 0; c < rank; c += 16) store(acc + c, fma(load(part + c), b, mul(load(acc + c), a)));
    state.total = state.total * old_scale + found.total * new_scale;
    state.top = top;
}

inline void finish(const float* acc, const Softmax& state, int rank, uint16_t* out) {
    const vf total = splat(state.total);
    for (int c = 0; c < rank; c += 16) store_bf16(out + c, div(load(acc + c), total));
}

// q [T, heads, width] bf16, scaled; out [T, heads, rank] bf16, rank a multiple of 32. Scratch for every thread;
// parts: grown as needed.
inline void attention(Pool& pool, const Span* spans, int count, const Cache& cache, const uint16_t* q, int heads,
                      int rank, std::vector<Scratch>& scratch, std::vector<float>& parts, uint16_t* out) {
    // A task is some queries of a span over all their blocks, or, where there are too few of those for the
    // threads, over one block; then the blocks are combined afterwards.
    struct Task { int span, from, n, block; int64_t place; };
    static thread_local std::vector<Task> whole, cut;
    whole.clear();
    cut.clear();
    int64_t size = 0;
    int total = 0;
    for (int i = 0; i < count; ++i) total += (spans[i].rows * heads + QUERIES - 1) / QUERIES;
    for (int i = 0; i < count; ++i) {
        const Span& s = spans[i];
        const int queries = s.rows * heads, blocks = (s.start + s.rows + KEYS - 1) / KEYS;
        for (int from = 0; from < queries; from += QUERIES) {
            const int n = queries - from < QUERIES ? queries - from : QUERIES;
            if (total >= 2 * pool.threads() || blocks == 1) {
                whole.push_back({i, from, n, -1, 0});
                continue;
            }
            for (int b = 0; b < blocks; ++b) {
                cut.push_back({i, from, n, b, size});
                size += int64_t(n) * (rank + 2);
            }
        }
    }
    if (int64_t(parts.size()) < size) parts.resize(size_t(size));
    const std::vector<Task>&tasks = whole, &pieces = cut;
    int64_t cost = 0;  // entries are read once for 16 queries
    for (int i = 0; i < count; ++i)
        cost += int64_t(spans[i].start + spans[i].rows) * cache.width * 2 * ((spans[i].rows * heads + QUERIES - 1) / QUERIES);
    // Scores, exponentials and mixing take several times what the reading takes.
    cost *= 4;
    pool.for_each(int(tasks.size()), [&](int t, int thread) {
        const Task& task = tasks[t];
        const Span& s = spans[task.span];
        alignas(64) float acc[QUERIES * MOST_RANK], part[QUERIES * MOST_RANK];
        Softmax state[QUERIES] = {}, found[QUERIES];
        float* to[QUERIES];
        for (int i = 0; i < task.n; ++i) to[i] = part + i * rank;
        const int last = s.start + (task.from + task.n - 1) / heads;
        for (int b = 0; b * KEYS <= last; ++b) {
            attend_block(s, cache, q, heads, rank, task.from, task.n, b, scratch[thread], to, found);
            for (int i = 0; i < task.n; ++i) combine(acc + i * rank, state[i], to[i], found[i], rank);
        }
        for (int i = 0; i < task.n; ++i)
            finish(acc + i * rank, state[i], rank, out + (int64_t(s.first) * heads + task.from + i) * rank);
    }, cost);
    if (pieces.empty()) return;
    pool.for_each(int(pieces.size()), [&](int t, int thread) {
        const Task& task = pieces[t];
        float* base = parts.data() + task.place;
        float* to[QUERIES];
        Softmax found[QUERIES];
        for (int i = 0; i < task.n; ++i) to[i] = base + 2 * task.n + i * rank;
        attend_block(spans[task.span], cache, q, heads, rank, task.from, task.n, task.block, scratch[thread], to,
                     found);
        memcpy(base, found, sizeof(Softmax) * size_t(task.n));
    }, cost);
    for (size_t t = 0; t < pieces.size();) {
        const Task& first = pieces[t];
        alignas(64) float acc[MOST_RANK];
        size_t next = t;
        while (next < pieces.size() && pieces[next].span == first.span && pieces[next].from == first.from) ++next;
        for (int i = 0; i < first.n; ++i) {
            Softmax state = {};
            for (size_t p = t; p < next; ++p) {
                const float* base = parts.data() + pieces[p].place;
                Softmax found;
                memcpy(&found, base + 2 * i, sizeof found);
                combine(acc, state, base + 2 * first.n + i * rank, found, rank);
            }
            finish(acc, state, rank,
                   out + (int64_t(spans[first.span].first) * heads + first.from + i) * rank);
        }
        t = next;
    }
}

}  // namespace
