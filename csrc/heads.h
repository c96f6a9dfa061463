// The outputs of a head, the target's or the drafter's. With several ranks each rank computes some of them.
#pragma once
#include "gqa.h"
#include "mla.h"

namespace {

struct Heads : Engine {
    using Engine::Engine;

    // The head's input, in bf16. index: rows of `hidden`; null: in order.
    Rows head_input(const float* hidden, const int32_t* index, int rows) {
        const int64_t c = wide(model.hidden);
        uint16_t* in = room(h16, rows * c);
        each_row(pool, rows, [&](int i) {
            const float* row = hidden + int64_t(index ? index[i] : i) * model.hidden;
            for (int j = 0; j < model.hidden; ++j) in[i * c + j] = float_bf16(row[j]);
            if (model.hidden & 1) in[i * c + model.hidden] = 0;
        });
        return {reinterpret_cast<uint32_t*>(in), c / 2};
    }

    // The target's head. drafts: the drafter runs next, so if it has the same head, this stays in the caches.
    NxWeight target_head(bool drafts = true) const {
        NxWeight head = model.head;
        if (drafts && head.data == model.draft_head.data) head.non_temporal = 0;
        return head;
    }

    // out [rows, vocab] f32 <- the target's logits. drafts: see target_head.
    void logits(const float* hidden, const int32_t* index, int rows, int vocab, float* out, bool drafts = true) {
        const Rows in = head_input(hidden, index, rows);
        scored(in, rows, target_head(drafts), vocab, [&](int i, const float* scores, int first, int n) {
            put(out + int64_t(i) * vocab + first, scores, n);
        });
    }

    // The same for the drafter's head; -infinity for tokens that it has no row for.
    void draft_logits(const float* hidden, const int32_t* index, int rows, int vocab, float* out) {
        const int32_t* ids = model.draft_ids;
        if (ids) std::fill(out, out + int64_t(rows) * vocab, -INFINITY);
        const Rows in = head_input(hidden, index, rows);
        scored(in, rows, model.draft_head, model.draft_vocab, [&](int i, const float* scores, int first, int n) {
            float* to = out + int64_t(i) * vocab;
            if (ids) for (int j = 0; j < n; ++j) to[ids[first + j]] = scores[j];
            else put(to + first, scores, n);
        });
    }

    // Calls done(row, outputs, index of the first of them, their number) for the `count` outputs of a head.
    template <class Done>
    void scored(const Rows& in, int rows, const NxWeight& head, int count, const Done& done) {
        if (!ranks) {
            product_all(pool, in, rows, head, [&](int i, int n0, int n, const float* v) {
                done(i, v, n0, n < count - n0 ? n : count - n0);
            });
            return;
        }
        score(in, rows, head, count);
        exchange_scores(nullptr, rows, count, [&](int i, const float* all) { done(i, all, 0, count); });
    }

    // own_scores <- this rank's part of the `count` outputs of a head.
    void score(const Rows& in, int rows, const NxWeight& head, int count) {
        const int64_t own = ranks.end(count, PANEL) - ranks.begin(count, PANEL);
        float* to = room(own_scores, rows * own);
        product_all(pool, in, rows, head, [&](int i, int n0, int n, const float* v) {
            put(to + i * own + n0, v, int(n < own - n0 ? n : own - n0));
        });
    }

    // Calls done(i, all `count` outputs) for each of `rows` rows of own_scores, after the ranks have exchanged
    // them. which: indices of these rows; null: the first ones.
    template <class Done> void exchange_scores(const int32_t* which, int rows, int count, const Done& done) {
        const int64_t first = ranks.begin(count, PANEL), own = ranks.end(count, PANEL) - first;
        for (int from = 0; from < rows; from += SCORE_ROWS) {
            const int some = rows - from < SCORE_ROWS ? rows - from : SCORE_ROWS;
            float* to = scores[turn ^= 1].room(int64_t(SCORE_ROWS) * model.vocab);
            for (int i = 0; i < some; ++i) {
                const int64_t row = which ? which[from + i] : from + i;
                put(to + int64_t(i) * count + first, own_scores.data() + row * own, int(own));
            }
            ranks.gather(to, some, count, count, PANEL);
            ranks.meet();
            for (int i = 0; i < some; ++i) done(from + i, to + int64_t(i) * count);
        }
    }
};

}  // namespace
