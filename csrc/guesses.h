// Chains of guesses in one call: a NextN module over what a step committed, and then, after the last row of
// each span that wants them, one guess after another, each fed back with the module's own output.
//
// Its products, norms and choices are those of one call for each depth, so its bits are; what is saved is what
// lies between the calls. Chains whose logits something changes first, such as a grammar, are chosen by the caller.
#pragma once
#include "choose.h"
#include "forward.h"

extern "C" {
struct NxChains {
    const int32_t* rows;         // of `hidden`: the state of each row of the batch
    const int32_t* span;         // of the batch: the one that each chain goes on from
    const NxSampling* sampling;  // of each chain's guesses; as many as it has rows, at least 1
    int32_t count, most, vocab;  // chains, the longest one's guesses, the vocabulary
    // The last `asked` chains are not chosen here, where their logits are changed first: whoever called writes
    // their tokens. scores [count, vocab]: of the chains that are still open, in order; `guess` is told the depth
    // and the first row of theirs. Not 0: it failed, and all of it ends.
    int32_t asked;
    float* scores;
    int32_t (*guess)(int32_t depth, int32_t first);
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
            const int32_t* span = b.span + 6 * c.span[i];
            open.push_back({i, span[0] + span[1] - 1, span[3], span[2] + span[1], 0});
        }
        for (int depth = 0; !open.empty(); ++depth) {
            {
                const TileUse use;
                if (depth) feed(b, module);
                take_rows();
                draft_logits(state.data(), rows.data(), int(open.size()), c.vocab, c.scores);
            }
            if (!guess(depth, c, tokens)) return;
            size_t left = 0;
            for (const Chain& chain : open)
                if (c.sampling[chain.number].rows > depth + 1) open[left++] = chain;
            open.resize(left);
        }
    }

private:
    struct Chain {
        int number, row, page, next;  // row of `state`; first place in pages; position of its next row
        int32_t last;                 // guess
    };
    std::vector<Chain> open;
    std::vector<float> state;
    std::vector<int32_t> rows, fed, spans_fed, order;

    void take_rows() {
        rows.clear();
        for (const Chain& chain : open) rows.push_back(chain.row);
    }

    // Each open chain's last guess goes through the module.
    void feed(const NxBatch& b, int module) {
        take_rows();
        fed.clear();
        spans_fed.clear();
        for (Chain& chain : open) {
            chain.row = int(fed.size());
            for (int32_t n : {chain.row, 1, chain.next++, chain.page, INT32_MAX, 0}) spans_fed.push_back(n);
            fed.push_back(chain.last);
        }
        const int n = int(open.size());
        draft({n, n, fed.data(), spans_fed.data(), b.pages, b.paths}, state.data(), rows.data(), module, state.data());
    }

    // false: who was asked failed.
    bool guess(int depth, const NxChains& c, int32_t* tokens) {
        const auto place = [&](const Chain& chain) { return tokens + chain.number * c.most + depth; };
        int drawn = 0;
        for (const Chain& chain : open) {
            if (chain.number >= c.count - c.asked) break;
            NxSampling s = c.sampling[chain.number];
            s.index += uint32_t(depth);
            *place(chain) = choose(c.scores + int64_t(drawn++) * c.vocab, c.vocab, s, order);
        }
        if (size_t(drawn) < open.size() && c.guess(depth, drawn)) return false;
        for (Chain& chain : open) chain.last = *place(chain);
        return true;
    }
};

}  // namespace
