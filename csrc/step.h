// A whole step, in one call, of requests that want only tokens: the target's rows, its choices after every root
// and draft, verification of the drafts, the NextN module over the committed positions, and the next drafts.
//
// It does what nextn.engine.runner does, for spans whose choices and guesses depend on nothing but a draw.
// Products and choices are the same as with one call for each, so the bits are the same.
// nextn/engine/plain_step.py says which spans these are.
#pragma once
#include "guesses.h"

extern "C" {
struct NxAsked {          // a request's parameters, which do not change
    NxSampling sampling;  // except index and rows, which the step sets
    const int32_t* ends;  // tokens that end the request
    int32_t end_count, limit;  // limit: maximum of its tokens, with the prompt
};

struct NxTurn {  // a request's span: known tokens at positions start, start + 1, ..., then its drafts
    enum { EXTENDS = 1, CUT = 2 };
    int32_t start, known, drafts;
    int32_t following;   // of a prompt chunk: the token after it; -1: the target chooses
    int32_t pages;       // number of its places in the table, in which requests are one after another
    int32_t num_steps;   // maximum depth of the draft to make; none is made after a prompt chunk
    int32_t flags;
    int32_t draft_page;  // index of the first page that the drafter sees
    bool chooses() const { return following < 0; }
    int32_t length() const { return start + known; }
};

struct NxTaken {   // the results of a request in the step
    int32_t held;  // accepted drafts
    int32_t token; // the target's choice after them; -1: none
    int32_t kept;  // guesses kept in the next draft; -1: no draft was to be made
    int32_t made;  // guesses made, including those that the cutoff did not keep
};

struct NxStep {
    int32_t spans, vocab;
    const int32_t* tokens;  // tokens of all spans
    const NxTurn* turns;    // [spans]
    float* hidden;          // out, [rows, hidden]: the target's hidden states
    float* scores;          // buffer [choices or spans, vocab], needed with one rank
    const NxCutoff* cutoff; // for the drafts of spans with CUT; null: no cutoff
    int32_t drafts, max_steps;  // drafts 0: no span extends; max_steps: the largest num_steps
    NxTaken* taken;    // out, [spans]
    int32_t* guesses;  // out, [drafts made, max_steps]: for spans whose `kept` is not -1, in order
    uint8_t* bins;     // out, like guesses: bins, for drafts with a cutoff
    int32_t* work;     // out, [5 + max_steps], see Work
};
}

namespace {

// What the step computed: rows of the NextN module's first pass; requests that chose, their drafts, and the
// positions before them; number of passes after the module's first one, and the rows of each.
enum Work { EXTENDED, DECODING, DRAFTS, CONTEXT, PASSES, ROWS };

struct Stepper : Guesser {
    using Guesser::Guesser;

    // asked [spans]; table: the pages of all spans.
    void step(const NxStep& s, const NxAsked* asked, const int32_t* table) {
        const NxBatch b = lay_spans(s, table);
        {
            const TileUse use;
            forward(b, s.hidden);
        }
        choose_all(s, asked, b);
        verify(s);
        count(s);
        if (s.drafts) draft_all(s, asked, b);
    }

  private:
    struct Arrays {  // the arrays of a batch
        std::vector<int32_t> tokens, starts, page_at, cu_rows;
        void clear() {
            for (std::vector<int32_t>* v : {&tokens, &starts, &page_at, &cu_rows}) v->clear();
            cu_rows.push_back(0);
        }
    };
    Arrays target, drafter;
    std::vector<int32_t> places;  // rows of `hidden`: after which a token is chosen; later the module's input
    std::vector<int32_t> after, num_steps, made, kept, passes;  // for each chain, as in NxChains
    std::vector<NxSampling> sampling;
    std::vector<uint8_t> cut;

    NxBatch lay_spans(const NxStep& s, const int32_t* table) {
        target.clear();
        int32_t rows = 0, page = 0;
        for (int i = 0; i < s.spans; ++i) {
            const NxTurn& t = s.turns[i];
            target.starts.push_back(t.start);
            target.page_at.push_back(page);
            target.cu_rows.push_back(rows += t.known + t.drafts);
            page += t.pages;
        }
        return {rows, s.spans, s.tokens, target.starts.data(), target.page_at.data(), target.cu_rows.data(), nullptr,
                table};
    }

    // found <- the target's choices after each root and draft.
    void choose_all(const NxStep& s, const NxAsked* asked, const NxBatch& b) {
        places.clear();
        draws.clear();
        for (int i = 0; i < s.spans; ++i) {
            const NxTurn& t = s.turns[i];
            if (!t.chooses()) continue;
            for (int j = 0; j <= t.drafts; ++j) {
                places.push_back(b.cu_rows[i] + t.known - 1 + j);
                draws.push_back({asked[i].sampling, false});
                draws.back().by.index = uint32_t(t.length() + j);
            }
        }
        const int n = int(places.size());
        if (!n) return;
        {
            const TileUse use;
            if (!ranks) logits(s.hidden, places.data(), n, s.vocab, s.scores);
            else score(head_input(s.hidden, places.data(), n), n, model.head, s.vocab);
        }
        if (ranks) choose_together(0, s.vocab, nullptr, s.vocab);
        else choose_alone(s.scores, s.vocab);
    }

    void verify(const NxStep& s) {
        const Best* own = found.data();
        const int32_t* tokens = s.tokens;
        for (int i = 0; i < s.spans; ++i) {
            const NxTurn& t = s.turns[i];
            NxTaken& taken = s.taken[i] = {0, -1, -1, 0};
            tokens += t.known;
            if (t.chooses()) {
                while (taken.held < t.drafts && own[taken.held].token() == tokens[taken.held]) ++taken.held;
                taken.token = own[taken.held].token();
                own += t.drafts + 1;
            }
            tokens += t.drafts;
        }
    }

    void count(const NxStep& s) {
        std::fill(s.work, s.work + ROWS, 0);
        for (int i = 0; i < s.spans; ++i) {
            const NxTurn& t = s.turns[i];
            if (!t.chooses()) continue;
            s.work[DECODING] += 1;
            s.work[DRAFTS] += t.drafts;
            s.work[CONTEXT] += t.start;
        }
    }

    // Runs the module over the committed positions. Requests that go on get drafts.
    void draft_all(const NxStep& s, const NxAsked* asked, const NxBatch& b) {
        drafter.clear();
        places.clear();
        for (std::vector<int32_t>* v : {&after, &num_steps}) v->clear();
        sampling.clear();
        cut.clear();
        for (int i = 0; i < s.spans; ++i)
            if (s.turns[i].flags & NxTurn::EXTENDS) take_in(s, i, asked[i], b);
        const int rows = int(drafter.tokens.size()), count = int(after.size());
        if (!rows) return;
        made.assign(size_t(count), 0);
        kept.assign(size_t(count), 0);
        passes.assign(size_t(s.max_steps) + 1, 0);
        const NxBatch settled{rows, int32_t(drafter.starts.size()), drafter.tokens.data(), drafter.starts.data(),
                              drafter.page_at.data(), drafter.cu_rows.data(), nullptr, b.table};
        chains(settled, s.hidden, 0, {places.data(), after.data(), sampling.data(), num_steps.data(), count, s.max_steps,
                                      s.vocab, s.scores, s.cutoff, cut.data(), s.guesses, s.bins, made.data(),
                                      kept.data(), passes.data()});
        s.work[EXTENDED] = rows;
        for (int depth = 1; passes[size_t(depth) - 1]; ++depth)
            if (passes[size_t(depth)]) s.work[ROWS + s.work[PASSES]++] = passes[size_t(depth)];
        for (int i = 0, chain = 0; i < s.spans; ++i)
            if (s.taken[i].kept == 0) {
                s.taken[i].kept = kept[size_t(chain)];
                s.taken[i].made = made[size_t(chain++)];
            }
    }

    // Adds the committed positions of span i to the module's input, each with the token after it, and the chain
    // after them.
    void take_in(const NxStep& s, int i, const NxAsked& asked, const NxBatch& b) {
        const NxTurn& t = s.turns[i];
        NxTaken& taken = s.taken[i];
        const bool own = taken.token >= 0;
        const int first = b.cu_rows[i], tokens = taken.held + own;
        if (t.chooses() && !tokens) return;  // nothing was committed in this step
        // If the target made no choice after them, the last draft is the next root.
        const int rows = t.known + (t.chooses() ? tokens - 1 : 0);
        for (int j = 0; j < rows; ++j) {
            const bool last = j + 1 == rows && (own || !t.chooses());
            drafter.tokens.push_back(!last ? s.tokens[first + j + 1] : own ? taken.token : t.following);
            places.push_back(first + j);
        }
        drafter.starts.push_back(t.start - t.draft_page * model.page);
        drafter.page_at.push_back(b.page_at[i] + t.draft_page);
        drafter.cu_rows.push_back(int32_t(drafter.tokens.size()));
        if (!t.chooses()) return;
        const int steps = std::min(t.num_steps, asked.limit - t.length() - tokens - 1);
        const int32_t* const accepted = s.tokens + first + t.known;
        if (steps <= 0 || (own && ends(asked, taken.token)) ||
            std::any_of(accepted, accepted + taken.held, [&](int32_t token) { return ends(asked, token); }))
            return;
        taken.kept = 0;
        after.push_back(int32_t(drafter.starts.size()) - 1);
        num_steps.push_back(steps);
        sampling.push_back(asked.sampling);
        sampling.back().index = uint32_t(t.length() + tokens);
        cut.push_back((t.flags & NxTurn::CUT) != 0);
    }

    static bool ends(const NxAsked& asked, int32_t token) {
        return std::find(asked.ends, asked.ends + asked.end_count, token) != asked.ends + asked.end_count;
    }
};

}  // namespace
