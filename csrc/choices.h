// Choices among the outputs of a head, of which each rank has some columns. A rank finds the best of its own
// columns and sends only that, 12 bytes a row. All columns are exchanged only for rows with filters and for
// rows whose logits are wanted.
#pragma once
#include "heads.h"

namespace {

// The columns of a head that a rank has, or all of them, as logits of tokens first, first + 1, ...
struct Columns {
    const int32_t* ids;  // the token of each column; null: columns are tokens in order
    int n, first, width;

    Columns(const int32_t* tokens, int64_t begin, int64_t end)
        : ids(tokens ? tokens + begin : nullptr), n(int(end - begin)), first(int(begin)), width(n) {
        if (!ids || !n) return;
        const auto ends = std::minmax_element(ids, ids + n);
        first = *ends.first / 4 * 4;
        width = *ends.second + 1 - first;
    }
    // room [width] <- scores [n]; -infinity for tokens that have no column.
    float* lay_out(const float* scores, std::vector<float>& room) const {
        if (!ids) {
            room.assign(scores, scores + n);
        } else {
            room.assign(size_t(width), -INFINITY);
            for (int i = 0; i < n; ++i) room[size_t(ids[i] - first)] = scores[i];
        }
        return room.data();
    }
};

struct Chooser : Heads {
    using Heads::Heads;

    // out [whole, vocab] f32 <- the logits of the first `whole` rows. tokens <- the choices of the other rows,
    // by draws in runs as in nx_choose.
    void choices(const float* hidden, int rows, int vocab, int whole, float* out, const NxSampling* runs,
                 int32_t* tokens) {
        {
            const TileUse use;
            score(head_input(hidden, nullptr, rows), rows, target_head(), vocab);
        }
        exchange_scores(nullptr, whole, vocab, [&](int i, const float* all) {
            put(out + int64_t(i) * vocab, all, vocab);
        });
        draws.clear();
        for (; int(draws.size()) < rows - whole; ++runs)
            for (int j = 0; j < runs->rows; ++j) {
                draws.push_back({*runs, false});
                draws.back().by.index += uint32_t(j);
            }
        choose_on_ranks(whole, vocab, nullptr, vocab);
        for (const Best& one : found) *tokens++ = one.token();
    }

  protected:
    struct Draw {
        NxSampling by;
        bool wants_second;  // whether Best::second is wanted
    };
    std::vector<Draw> draws;
    std::vector<Best> found;  // one for each draw

    // found <- each draw's choice, from the rows of scores [draws, vocab], which may be overwritten.
    void choose_on_one_rank(float* scores, int vocab) {
        const int64_t n = int64_t(draws.size());
        found.resize(size_t(n));
        orders.resize(size_t(pool.threads()));
        pool.for_each(int(n), [&](int i, int thread) {
            float* z = scores + int64_t(i) * vocab;
            const Draw& draw = draws[size_t(i)];
            found[size_t(i)] = draw.wants_second ? best_of<true>(z, vocab, 0, draw.by, orders[size_t(thread)])
                                         : best_of(z, vocab, 0, draw.by, orders[size_t(thread)]);
        }, n * vocab * 4);
    }

    // found <- each draw's choice, from row `from` of own_scores on. count: number of all columns, which are
    // tokens `ids`.
    void choose_on_ranks(int from, int vocab, const int32_t* ids, int count) {
        const int64_t n = int64_t(draws.size()), begin = ranks.begin(count, PANEL), end = ranks.end(count, PANEL);
        const Columns own(ids, begin, end), every(ids, 0, count);
        Best* all = best[turn ^= 1].room(n * ranks.size());
        Best* mine = all + n * ranks.rank();
        rooms.resize(size_t(pool.threads()));
        pool.for_each(int(n), [&](int i, int thread) {
            if (filters(draws[i].by, vocab)) return;
            float* z = own_scores.data() + (from + i) * (end - begin);
            mine[i] = chosen(ids ? own.lay_out(z, rooms[thread]) : z, own, draws[i]);
        }, n * (end - begin) * 4);
        if (n) ranks.gather(all, 1, n * ranks.size(), n * ranks.size(), n);
        ranks.meet();
        found.resize(size_t(n));
        filtered.clear();
        for (int i = 0; i < n; ++i)
            if (filters(draws[i].by, vocab)) filtered.push_back(from + i);
            else found[i] = best_of(all + i, n, ranks.size());
        exchange_scores(filtered.data(), int(filtered.size()), count, [&](int k, const float* z) {
            const int i = filtered[k] - from;
            found[i] = chosen(every.lay_out(z, rooms[0]), every, draws[i]);
        });
    }

  private:
    std::vector<std::vector<float>> rooms;  // one for each thread
    std::vector<std::vector<int32_t>> orders;
    std::vector<int32_t> filtered, order;

    Best chosen(float* z, const Columns& of, const Draw& draw) {
        return draw.wants_second ? best_of<true>(z, of.width, of.first, draw.by, order)
                         : best_of(z, of.width, of.first, draw.by, order);
    }
};

}  // namespace
