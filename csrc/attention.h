// Attention over the paged cache: absorbed multi-head latent attention (MLA, arXiv 2405.04434) and grouped queries
// (GQA, arXiv 2305.13245).
//
// MLA's entry is [latent (R) | rotated key (P)], D = R + P, padded with zeros to a multiple of 32. It is the
// key of every head, and its first R columns are the value. GQA's has [value | key] for each key-value head, both
// padded likewise. So all query heads that share a key-value head, a group, see entries of one kind: a value at
// the beginning, and a key that is all of it or what follows (NxHeads).
//
// Keys are taken in absolute blocks of 256 positions: scores, maximum, exponentials, their sum and the weighted
// values of a block depend on the query and the block alone, and blocks are combined from the first to the last. So a
// query's bits depend neither on who computes which block nor on the queries beside it. A node of a draft tree is a
// span of its own, whose last keys lie in slots that are listed: it meets the same keys at the same positions as it
// would in a chain, so its bits do not depend on the tree either. Up to the block in which the tree begins, all nodes
// see the same keys, and are the queries of one span; from there on each meets the keys of its own path.
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

// Queries [from, from + n) of a span and a group, or of a tree's from its first on, over all their blocks of keys, or
// over one.
struct AttentionTask {
    int span, group, from, n;
    int block;      // where it is one
    int64_t place;  // of its sums in parts
};

inline int64_t padded_queries(int n) { return (n + 15) / 16 * 16; }
// Tiles write 16 at a time, and the last node's queries may begin at any of a task's n.
inline int64_t written_queries(int n) { return n + 15; }

// Where attention's values go: of a row, the columns that are wanted of each of its heads, one after another.
struct MixedRows {
    uint16_t* data;
    int64_t stride;  // elements from row to row
};

// Of `rows` rows in all. q [groups, rows, heads, key] bf16, scaled. Scratch for every thread; parts: grown as needed.
inline void attention(Pool& pool, const Span* spans, int count, int64_t rows, const Cache& cache, const NxHeads& of,
                      const uint16_t* q, std::vector<Scratch>& scratch, std::vector<Line>& parts,
                      const MixedRows& out) {
    static thread_local std::vector<AttentionTask> whole, cut;
    whole.clear();
    cut.clear();
    const int heads = of.heads, rank = of.value;
    const auto tasks_of = [&](int size, bool by_block) {
        int64_t total = 0;
        for (int i = 0; i < count; i += spans[i].nodes) {
            const int all = spans[i].all_rows() * heads;
            const int blocks = last_seen(spans + i, 0, all, heads) / KEYS + 1;
            total += int64_t(all + size - 1) / size * (by_block ? blocks : 1);
        }
        return total * of.groups;
    };
    // Large tasks share the work on their keys, many keep the threads busy.
    int size = QUERIES;
    while (size > LEAST_QUERIES && tasks_of(size, true) < 4 * pool.threads()) size /= 2;
    const bool few = tasks_of(size, false) < 2 * pool.threads();
    int64_t place = 0;
    for (int i = 0; i < count; i += spans[i].nodes)
        for (int g = 0; g < of.groups; ++g) {
            const int all = spans[i].all_rows() * heads;
            for (int from = 0; from < all; from += size) {
                const int n = all - from < size ? all - from : size;
                const int blocks = last_seen(spans + i, from, n, heads) / KEYS + 1;
                if (!few || blocks == 1) {
                    whole.push_back({i, g, from, n, 0, 0});
                    continue;
                }
                for (int b = 0; b < blocks; ++b) {
                    cut.push_back({i, g, from, n, b, place});
                    place += padded_queries(2 * n) + written_queries(n) * rank;
                }
            }
        }
    const std::vector<AttentionTask>&tasks = whole, &pieces = cut;
    // The queries of a group from number `from` of a span on.
    const auto queries = [&](int span, int group, int from) {
        return q + ((group * rows + spans[span].first) * heads + from) * of.key;
    };
    const auto put = [&](const AttentionTask& task, int query, const float* sums, const Softmax& state) {
        const int number = task.from + query, row = spans[task.span].first + number / heads;
        const int64_t head = int64_t(task.group) * heads + number % heads;
        finish(sums, state, of.columns, out.data + row * out.stride + head * of.columns);
    };
    const auto attend = [&](const AttentionTask& task, int block, Scratch& own, float* to, Softmax* found) {
        const Span& s = spans[task.span];
        const Cache seen = cache.of(of, task.group);
        const int begin = block * KEYS;
        if (s.nodes == 1 || begin + KEYS <= s.fork) {
            take_keys(own, s, seen, of, begin, keys_seen(s, task.from + task.n - 1, heads, begin));
            attend_block(own, s, heads, task.from, task.n, begin, rank, to, found);
            return;
        }
        // Node by node, first to last: what tiles write behind a node's queries, the next node's write over.
        for (int done = 0, n; done < task.n; done += n) {
            const int at = task.span + (task.from + done) / heads;
            const Span& node = spans[at];
            const int from = (task.from + done) % heads;
            n = heads - from < task.n - done ? heads - from : task.n - done;
            take_queries(own, queries(at, task.group, from), n, of.key);
            take_keys(own, node, seen, of, begin, keys_seen(node, from, heads, begin));
            attend_block(own, node, heads, from, n, begin, rank, to + int64_t(done) * rank, found + done);
        }
    };
    int64_t cost = 0;  // entries are read once for 16 queries
    const int64_t entry = of.key_at + of.key;
    for (int i = 0; i < count; i += spans[i].nodes)
        cost += int64_t(spans[i].start + spans[i].rows) * entry * 2 * ((spans[i].all_rows() * heads + 15) / 16);
    // Scores, exponentials and mixing take several times what the reading takes.
    cost *= 4 * of.groups;
    pool.for_each(int(tasks.size()), [&](int t, int thread) {
        const AttentionTask& task = tasks[t];
        Scratch& own = scratch[thread];
        const int64_t all = written_queries(task.n) * rank;
        float* sums = room(own.sums, 2 * all);
        Softmax state[QUERIES] = {}, found[QUERIES];
        take_queries(own, queries(task.span, task.group, task.from), task.n, of.key);
        const int last = last_seen(spans + task.span, task.from, task.n, heads);
        for (int b = 0; b * KEYS <= last; ++b) {
            attend(task, b, own, sums + all, found);
            for (int i = 0; i < task.n; ++i)
                combine(sums + i * rank, state[i], sums + all + i * rank, found[i], rank);
        }
        for (int i = 0; i < task.n; ++i) put(task, i, sums + i * rank, state[i]);
    }, cost);
    if (pieces.empty()) return;
    float* base = room(parts, place);
    pool.for_each(int(pieces.size()), [&](int t, int thread) {
        const AttentionTask& task = pieces[t];
        Softmax found[QUERIES];
        take_queries(scratch[thread], queries(task.span, task.group, task.from), task.n, of.key);
        attend(task, task.block, scratch[thread], base + task.place + padded_queries(2 * task.n), found);
        memcpy(base + task.place, found, sizeof(Softmax) * size_t(task.n));
    }, cost);
    for (size_t t = 0, next; t < pieces.size(); t = next) {
        const AttentionTask& first = pieces[t];
        for (next = t + 1; next < pieces.size() && pieces[next].block; ++next) {}
        for (int i = 0; i < first.n; ++i) {
            alignas(64) float sums[MOST_RANK];
            Softmax state = {};
            for (size_t p = t; p < next; ++p) {
                const float* part = base + pieces[p].place;
                Softmax found;
                memcpy(&found, part + 2 * i, sizeof found);
                combine(sums, state, part + padded_queries(2 * first.n) + i * rank, found, rank);
            }
            put(first, i, sums, state);
        }
    }
}

}  // namespace
