// Absorbed multi-head latent attention over the paged cache (arXiv 2405.04434).
//
// A cache entry is [latent (R) | rotated key (P)], D = R + P, padded with zeros to a multiple of 32. It is the
// key of every head, and its first R columns are the value. Keys are taken in absolute blocks of 256
// positions: scores, maximum, exponentials, their sum and the weighted values of a block depend on the
// query and the block alone, and blocks are combined from the first to the last. So a query's bits depend
// neither on who computes which block nor on the queries beside it. A node of a draft tree is a span of its own,
// whose last keys lie in slots that are listed: it meets the same keys at the same positions as it would in a
// chain, so its bits do not depend on the tree either. Up to the block in which the tree begins, all nodes see the
// same keys, and are the queries of one span; from there on each meets the keys of its own path.
//
// (Block-wise softmax: Milakov and Gimelshein, arXiv 1805.02867.)
#pragma once
#include "pool.h"
#if defined(__AMX_BF16__)
#include "attention_tiles.h"
#else
#include "attention_vectors.h"
#endif

namespace {

// Queries [from, from + n) of a span, or of a tree's from its first on, over all their blocks of keys, or over one.
struct AttentionTask {
    int span, from, n;
    int block;      // where it is one
    int64_t place;  // of its sums in parts
};

inline int64_t padded_queries(int n) { return (n + 15) / 16 * 16; }
// Tiles write 16 at a time, and the last node's queries may begin at any of a task's n.
inline int64_t written_queries(int n) { return n + 15; }

// q [T, heads, width] bf16, scaled; out [T, heads, rank] bf16, rank a multiple of 32. Scratch for every thread;
// parts: grown as needed.
inline void attention(Pool& pool, const Span* spans, int count, const Cache& cache, const uint16_t* q, int heads,
                      int rank, std::vector<Scratch>& scratch, std::vector<Line>& parts, uint16_t* out) {
    static thread_local std::vector<AttentionTask> whole, cut;
    whole.clear();
    cut.clear();
    const auto groups = [&](int size, bool by_block) {
        int64_t total = 0;
        for (int i = 0; i < count; i += spans[i].nodes) {
            const int all = spans[i].all_rows() * heads;
            const int blocks = last_seen(spans + i, 0, all, heads) / KEYS + 1;
            total += int64_t(all + size - 1) / size * (by_block ? blocks : 1);
        }
        return total;
    };
    // Large tasks share the work on their keys, many keep the threads busy.
    int group = QUERIES;
    while (group > LEAST_QUERIES && groups(group, true) < 4 * pool.threads()) group /= 2;
    const bool few = groups(group, false) < 2 * pool.threads();
    int64_t size = 0;
    for (int i = 0; i < count; i += spans[i].nodes) {
        const int all = spans[i].all_rows() * heads;
        for (int from = 0; from < all; from += group) {
            const int n = all - from < group ? all - from : group;
            const int blocks = last_seen(spans + i, from, n, heads) / KEYS + 1;
            if (!few || blocks == 1) {
                whole.push_back({i, from, n, 0, 0});
                continue;
            }
            for (int b = 0; b < blocks; ++b) {
                cut.push_back({i, from, n, b, size});
                size += padded_queries(2 * n) + written_queries(n) * rank;
            }
        }
    }
    const std::vector<AttentionTask>&tasks = whole, &pieces = cut;
    const auto take = [&](const AttentionTask& task, Scratch& own) {
        const int64_t first = int64_t(spans[task.span].first) * heads + task.from;
        take_queries(own, q + first * cache.width, task.n, cache.width);
        return out + first * rank;
    };
    const auto attend = [&](const AttentionTask& task, int block, Scratch& own, float* to, Softmax* found) {
        const Span& s = spans[task.span];
        const int begin = block * KEYS;
        if (s.nodes == 1 || begin + KEYS <= s.fork) {
            take_keys(own, s, cache, begin, keys_seen(s, task.from + task.n - 1, heads, begin), rank);
            attend_block(own, s, heads, task.from, task.n, begin, rank, to, found);
            return;
        }
        // Node by node, first to last: what tiles write behind a node's queries, the next node's write over.
        for (int done = 0, n; done < task.n; done += n) {
            const Span& node = spans[task.span + (task.from + done) / heads];
            const int from = (task.from + done) % heads;
            n = heads - from < task.n - done ? heads - from : task.n - done;
            take_queries(own, q + (int64_t(node.first) * heads + from) * cache.width, n, cache.width);
            take_keys(own, node, cache, begin, keys_seen(node, from, heads, begin), rank);
            attend_block(own, node, heads, from, n, begin, rank, to + int64_t(done) * rank, found + done);
        }
    };
    int64_t cost = 0;  // entries are read once for 16 queries
    for (int i = 0; i < count; i += spans[i].nodes)
        cost += int64_t(spans[i].start + spans[i].rows) * cache.width * 2 * ((spans[i].all_rows() * heads + 15) / 16);
    // Scores, exponentials and mixing take several times what the reading takes.
    cost *= 4;
    pool.for_each(int(tasks.size()), [&](int t, int thread) {
        const AttentionTask& task = tasks[t];
        Scratch& own = scratch[thread];
        const int64_t all = written_queries(task.n) * rank;
        float* sums = room(own.sums, 2 * all);
        Softmax state[QUERIES] = {}, found[QUERIES];
        uint16_t* to = take(task, own);
        const int last = last_seen(spans + task.span, task.from, task.n, heads);
        for (int b = 0; b * KEYS <= last; ++b) {
            attend(task, b, own, sums + all, found);
            for (int i = 0; i < task.n; ++i)
                combine(sums + i * rank, state[i], sums + all + i * rank, found[i], rank);
        }
        for (int i = 0; i < task.n; ++i) finish(sums + i * rank, state[i], rank, to + int64_t(i) * rank);
    }, cost);
    if (pieces.empty()) return;
    float* base = room(parts, size);
    pool.for_each(int(pieces.size()), [&](int t, int thread) {
        const AttentionTask& task = pieces[t];
        Softmax found[QUERIES];
        take(task, scratch[thread]);
        attend(task, task.block, scratch[thread], base + task.place + padded_queries(2 * task.n), found);
        memcpy(base + task.place, found, sizeof(Softmax) * size_t(task.n));
    }, cost);
    for (size_t t = 0, next; t < pieces.size(); t = next) {
        const AttentionTask& first = pieces[t];
        for (next = t; next < pieces.size() && pieces[next].span == first.span && pieces[next].from == first.from;)
            ++next;
        uint16_t* to = out + (int64_t(spans[first.span].first) * heads + first.from) * rank;
        for (int i = 0; i < first.n; ++i, to += rank) {
            alignas(64) float sums[MOST_RANK];
            Softmax state = {};
            for (size_t p = t; p < next; ++p) {
                const float* part = base + pieces[p].place;
                Softmax found;
                memcpy(&found, part + 2 * i, sizeof found);
                combine(sums, state, part + padded_queries(2 * first.n) + i * rank, found, rank);
            }
            finish(sums, state, rank, to);
        }
    }
}

}  // namespace
