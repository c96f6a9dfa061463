// Chains of guesses in one call: a NextN module over what a step committed, and then, after the last row of
// each span that wants them, one guess after another, each fed back with the module's own output.
//
// Its products, norms and choices are those of one call for each depth, so its bits are; what is saved is what
// lies between the calls. Chains whose logits something changes first, such as a grammar, are chosen by the caller.
#pragma once
#include "choose.h"
#include "forward.h"
#include "gate.h"

extern "C" {
struct NxChains {
    const int32_t* rows;         // of `hidden`: the state of each row of the batch
    const int32_t* span;         // of the batch: the one that each chain goes on from
    const NxSampling* sampling;  // of each chain's guesses; as many as it has rows, at least 1
    int32_t count, most, vocab;  // chains, the longest one's guesses, the vocabulary
    // The last `asked` chains are not chosen here, where their logits are changed first: whoever called writes
    // their tokens, -1 where there is nothing to guess, which ends the chain. scores [count, vocab]: of the chains that are still open, in order; `guess` is told the depth
    // and the first row of theirs. Not 0: it failed, and all of it ends.
    int32_t asked;
    float* scores;
    int32_t (*guess)(int32_t depth, int32_t first);
    // A gate for those chains that have a 1 here; null: none has.
    const NxGate* gate;
    const uint8_t* gated;  // [count]
    uint8_t* bins;   // out, [count, most]: of the gated chains' guesses, by their lead
    int32_t* made;   // out, [count], zeros: guesses made
    int32_t* kept;   // out, [count], zeros, with a gate: those of them that are worth verifying
};
}

namespace {

struct Guesser : Engine {
    using Engine::Engine;

    // tokens [count, most].
    void chains(const NxBatch& b, const float* hidden, int module, const NxChains& c, int32_t* tokens) {
        float* s = room(state, int64_t(b.rows) * model.hidden);
        {
            const TileUse use;
            draft(b, hidden, c.rows, module, s);
        }
        open.clear();
        for (int i = 0; i < c.count; ++i) {
            const int32_t span = c.span[i], first = b.cu_rows[span], end = b.cu_rows[span + 1];
            open.push_back({i, end - 1, b.page_at[span], b.starts[span] + end - first, 0, 1.f});
        }
        for (int depth = 0; !open.empty(); ++depth) {
            {
                const TileUse use;
                if (depth) feed(b, module);
                take_rows();
                draft_logits(state.data(), rows.data(), int(open.size()), c.vocab, c.scores);
            }
            if (!guess(depth, c, tokens)) return;
            go_on(depth + 1, c);
        }
    }

private:
    struct Chain {
        int number, row, page, next;  // row of `state`; where its pages begin; position of its next row
        int32_t last;                 // guess
        float holds;                  // probability that all of it does
    };
    std::vector<Chain> open;
    std::vector<float> state;
    std::vector<int32_t> rows, fed, starts, pages, begins, order;

    void take_rows() {
        rows.clear();
        for (const Chain& chain : open) rows.push_back(chain.row);
    }

    // Each open chain's last guess goes through the module.
    void feed(const NxBatch& b, int module) {
        take_rows();
        for (std::vector<int32_t>* v : {&fed, &starts, &pages, &begins}) v->clear();
        for (Chain& chain : open) {
            chain.row = int(fed.size());
            begins.push_back(chain.row);
            starts.push_back(chain.next++);
            pages.push_back(chain.page);
            fed.push_back(chain.last);
        }
        const int n = int(open.size());
        begins.push_back(n);
        const NxBatch next{n, n, fed.data(), starts.data(), pages.data(), begins.data(), nullptr, b.table};
        draft(next, state.data(), rows.data(), module, state.data());
    }

    // Leaves those chains open that are to have more than `made` guesses and have something to guess.
    void go_on(int made, const NxChains& c) {
        size_t left = 0;
        float worth = 0.f;
        bool must = false;
        for (const Chain& chain : open) {
            const bool gated = c.gate && c.gated[chain.number];
            if (chain.last < 0) continue;
            c.made[chain.number] = made;
            if (c.gate && (!gated || chain.holds >= c.gate->keep)) c.kept[chain.number] = made;
            if (c.sampling[chain.number].rows <= made) continue;
            if (gated) {
                const float gain = chain.holds * c.gate->usual - c.gate->each;
                if (gain <= 0.f || chain.holds < c.gate->keep) continue;
                worth += gain;
            }
            must |= !gated;
            open[left++] = chain;
        }
        if (!must && c.gate && worth <= c.gate->pass) left = 0;
        open.resize(left);
    }

    // false: who was asked failed.
    bool guess(int depth, const NxChains& c, int32_t* tokens) {
        const auto place = [&](const Chain& chain) { return tokens + chain.number * c.most + depth; };
        int drawn = 0;
        for (Chain& chain : open) {
            if (chain.number >= c.count - c.asked) break;
            NxSampling s = c.sampling[chain.number];
            s.index += uint32_t(depth);
            float* z = c.scores + int64_t(drawn++) * c.vocab;
            if (c.gate && c.gated[chain.number]) {
                float lead;
                *place(chain) = choose<true>(z, c.vocab, s, order, &lead);
                const int bin = c.gate->bin(lead);
                c.bins[chain.number * c.most + depth] = uint8_t(bin);
                chain.holds *= c.gate->rate[bin];
            } else {
                *place(chain) = choose(z, c.vocab, s, order);
            }
        }
        if (size_t(drawn) < open.size() && c.guess(depth, drawn)) return false;
        for (Chain& chain : open) chain.last = *place(chain);
        return true;
    }
};

}  // namespace
