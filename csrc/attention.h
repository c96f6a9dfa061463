// Attention over the paged cache: absorbed multi-head latent attention (MLA, arXiv 2405.04434) and
// grouped-query attention (GQA, arXiv 2305.13245).
//
// An entry of MLA is [latent (R) | rotated key (P)], D = R + P, padded with zeros to a multiple of 32. It is
// the key of every head, and its first R columns are the value. An entry of GQA is [value | key] for each
// key-value head, both padded the same way. All query heads that share a key-value head form a group. A group
// reads one part of an entry: the value is at its beginning, and the key is the whole part (MLA) or follows the
// value (GQA). NxHeads says which.
//
// Keys are read in absolute blocks of 256 positions. The scores, maximum, exponentials, their sum and the
// weighted values of a block depend on the query and the block alone, and blocks are combined from first to
// last. So a query's bits do not depend on the thread that computes a block or on the other queries. A node of
// a draft tree is a span of its own; the slots of its last keys are listed. It reads the same keys at the same
// positions as it would in a chain, so its bits do not depend on the tree either. In the blocks before the tree
// begins, all nodes see the same keys, and they are computed as the queries of one span. From that block on,
// each node reads the keys of its own path.
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

// Queries [from, from + n) of a span and a group, over all their blocks of keys or over one block. For a tree,
// queries are counted over all its nodes, from its first span on.
struct AttentionTask {
    int span, group, from, n;
    int block;      // in pieces only
    int64_t place;  // in pieces only: where its sums are in `parts`
};

inline int64_t padded_queries(int n) { return (n + 15) / 16 * 16; }
// Tiles write 16 queries at a time, and the last node's queries can begin at any of a task's n.
inline int64_t written_queries(int n) { return n + 15; }

// Where attention writes its results: the first `columns` columns of each head of a row, head after head.
struct MixedRows {
    uint16_t* data;
    int64_t stride;  // elements from row to row
};

// spans [count] have `rows` rows together. q [groups, rows, heads, key] bf16, scaled. scratch: one for each
// thread. parts: grown as needed.
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
    // Large tasks share the work on their keys; many tasks keep all threads busy.
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
    // The queries of a group, from query `from` of a span on.
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
        // Node by node, in order: what tiles write behind a node's queries is overwritten by the next node.
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
    int64_t cost = 0;  // an entry is read once for 16 queries
    const int64_t entry = of.key_at + of.key;
    for (int i = 0; i < count; i += spans[i].nodes)
        cost += int64_t(spans[i].start + spans[i].rows) * entry * 2 * ((spans[i].all_rows() * heads + 15) / 16);
    // Scores, exponentials and weighting of values take several times as long as reading.
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
