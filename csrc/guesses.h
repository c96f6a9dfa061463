// Chains of guesses in one call. A NextN module runs over what a step committed. Then, after the last row of
// each span that wants guesses, it makes one guess after another from its own output.
//
// It is the loop of nextn.speculative.mtp, for chains whose guesses depend on nothing but a draw. Products,
// norms and choices are the same as with one call for each depth, so the bits are the same. One call saves the
// time between the calls.
#pragma once
#include "choices.h"
#include "cutoff.h"

extern "C" {
struct NxChains {
    const int32_t* rows;         // indices in `hidden` of the state of each row of the batch
    const int32_t* span;         // index in the batch of the span that each chain continues
    const NxSampling* sampling;  // for each chain's first guess; the index increases by 1 per guess
    const int32_t* num_steps;    // maximum of guesses of each chain, at least 1
    int32_t count, max_steps, vocab;  // number of chains, largest num_steps, size of the vocabulary
    float* scores;               // buffer [count, vocab], needed with one rank
    const NxCutoff* cutoff;      // for chains with a 1 in `cut`; null: no cutoff
    const uint8_t* cut;          // [count]
    int32_t* tokens;  // out, [count, max_steps]
    uint8_t* bins;    // out, [count, max_steps]: bins of confidence of the guesses of chains with a cutoff
    int32_t* made;    // out, [count], zeros at first: number of guesses made
    int32_t* kept;    // out, [count], zeros at first: number of guesses that are worth verifying
    int32_t* passes;  // out, [max_steps], zeros at first: number of chains that had a guess made at each depth
};
}

namespace {

struct Guesser : Chooser {
    using Chooser::Chooser;

    void chains(const NxBatch& b, const float* hidden, int module, const NxChains& c) {
        float* s = room(state, int64_t(b.rows) * model.hidden);
        {
            const TileUse use;
            draft(b, hidden, c.rows, module, s);
        }
        open_chains.clear();
        for (int i = 0; i < c.count; ++i) {
            const int32_t span = c.span[i], first = b.cu_rows[span], end = b.cu_rows[span + 1];
            open_chains.push_back({i, end - 1, b.page_at[span], b.starts[span] + end - first, 0, 1.f});
        }
        for (int depth = 0; !open_chains.empty(); ++depth) {
            c.passes[depth] = int32_t(open_chains.size());
            {
                const TileUse use;
                if (depth) feed(b, module);
                take_rows();
                const int n = int(open_chains.size());
                if (!ranks) draft_logits(state.data(), rows.data(), n, c.vocab, c.scores);
                else score(head_input(state.data(), rows.data(), n), n, model.draft_head, model.draft_vocab);
            }
            guess(depth, c);
            go_on(depth + 1, c);
        }
    }

private:
    struct Chain {
        int number, row, page, next;  // row: in `state`; page: place in the table; next: position of next row
        int32_t last;                 // its last guess
        float probability;            // probability that all its guesses are accepted
    };
    std::vector<Chain> open_chains;
    std::vector<float> state;
    std::vector<int32_t> rows, last_guesses, starts, pages, cu_rows;

    void take_rows() {
        rows.clear();
        for (const Chain& chain : open_chains) rows.push_back(chain.row);
    }

    // Runs the module over each open chain's last guess.
    void feed(const NxBatch& b, int module) {
        take_rows();
        for (std::vector<int32_t>* v : {&last_guesses, &starts, &pages, &cu_rows}) v->clear();
        for (Chain& chain : open_chains) {
            chain.row = int(last_guesses.size());
            cu_rows.push_back(chain.row);
            starts.push_back(chain.next++);
            pages.push_back(chain.page);
            last_guesses.push_back(chain.last);
        }
        const int n = int(open_chains.size());
        cu_rows.push_back(n);
        const NxBatch next{n, n, last_guesses.data(), starts.data(), pages.data(), cu_rows.data(), nullptr, b.table};
        draft(next, state.data(), rows.data(), module, state.data());
    }

    // Ends chains that have all their guesses, that had nothing to choose, or for which the cutoff says that
    // another guess does not pay. made: guesses that each open chain has.
    void go_on(int made, const NxChains& c) {
        size_t left = 0;
        float worth = 0.f;
        bool must = false;
        for (const Chain& chain : open_chains) {
            const bool cut = c.cutoff && c.cut[chain.number];
            if (chain.last < 0) continue;
            c.made[chain.number] = made;
            if (!cut || chain.probability >= c.cutoff->row_cost) c.kept[chain.number] = made;
            if (c.num_steps[chain.number] <= made) continue;
            if (cut) {
                const float gain = chain.probability * c.cutoff->mean_rate - c.cutoff->guess_cost;
                if (gain <= 0.f || chain.probability < c.cutoff->row_cost) continue;
                worth += gain;
            }
            must |= !cut;
            open_chains[left++] = chain;
        }
        if (!must && c.cutoff && worth <= c.cutoff->pass_cost) left = 0;
        open_chains.resize(left);
    }

    void guess(int depth, const NxChains& c) {
        draws.clear();
        for (const Chain& chain : open_chains) {
            draws.push_back({c.sampling[chain.number], c.cutoff && c.cut[chain.number]});
            draws.back().by.index += uint32_t(depth);
        }
        if (ranks) choose_on_ranks(0, c.vocab, model.draft_ids, model.draft_vocab);
        else choose_on_one_rank(c.scores, c.vocab);
        for (size_t i = 0; i < open_chains.size(); ++i) {
            Chain& chain = open_chains[i];
            const Draw& draw = draws[i];
            chain.last = found[i].token();
            const int at = chain.number * c.max_steps + depth;
            c.tokens[at] = chain.last;
            if (!draw.wants_second) continue;
            const int bin = c.cutoff->bin(found[i].confidence(draw.by));
            c.bins[at] = uint8_t(bin);
            chain.probability *= c.cutoff->rate[bin];
        }
    }
};

}  // namespace
