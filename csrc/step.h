// A whole step, in one call, of requests that want only tokens: the target's rows, its choices after every root
// and draft, verification of the drafts, the NextN module over the committed positions, and the next drafts.
//
// It does what nextn.engine.runner does, for spans whose choices and guesses depend on nothing but a draw.
// Products and choices are the same as with one call for each, so the bits are the same.
// nextn/engine/plain_step.py says which spans these are.
#pragma once
#include "guesses.h"

extern "C" {
struct NxRequest {        // a request's parameters, which do not change
    NxSampling sampling;  // except index and rows, which the step sets
    const int32_t* ends;  // tokens that end the request
    int32_t end_count, limit;  // limit: maximum of its tokens, with the prompt
};

struct NxSpan {  // a request's span: known tokens at positions start, start + 1, ..., then its drafts
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

struct NxSpanResult {  // the results of a request in the step
    int32_t accepted;  // number of accepted drafts
    int32_t token;     // the target's choice after them; -1: none
    int32_t kept;      // guesses kept in the next draft; -1: no draft was to be made
    int32_t made;      // guesses made, including those that the cutoff did not keep
};

struct NxStep {
    int32_t spans, vocab;
    const int32_t* tokens;  // tokens of all spans
    const NxSpan* span;     // [spans]
    float* hidden;          // out, [rows, hidden]: the target's hidden states
    float* scores;          // buffer [choices or spans, vocab], needed with one rank
    const NxCutoff* cutoff; // for the drafts of spans with CUT; null: no cutoff
    int32_t drafts, max_steps;  // drafts 0: no span extends; max_steps: the largest num_steps
    NxSpanResult* results;  // out, [spans]
    int32_t* guesses;       // out, [drafts made, max_steps]: for spans whose `kept` is not -1, in order
    uint8_t* bins;          // out, like guesses: bins, for drafts with a cutoff
    int32_t* work;          // out, [5 + max_steps], see Work
};
}

namespace {

// What the step computed: rows of the NextN module's first pass; requests that chose, their drafts, and the
// positions before them; number of passes after the module's first one, and the rows of each.
enum Work { EXTENDED, DECODING, DRAFTS, CONTEXT, PASSES, ROWS };

struct Stepper : Guesser {
    using Guesser::Guesser;

    // requests [spans]; table: the pages of all spans.
    void step(const NxStep& s, const NxRequest* requests, const int32_t* table) {
        const NxBatch b = target_batch(s, table);
        {
            const TileUse use;
            forward(b, s.hidden);
        }
        choose_all(s, requests, b);
        verify(s);
        count(s);
        if (s.drafts) draft_all(s, requests, b);
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
    std::vector<int32_t> state_rows;  // rows of `hidden`: after which a token is chosen; later the module's input
    std::vector<int32_t> chain_spans, num_steps, made, kept, passes;  // for each chain, as in NxChains
    std::vector<NxSampling> sampling;
    std::vector<uint8_t> cut;

    NxBatch target_batch(const NxStep& s, const int32_t* table) {
        target.clear();
        int32_t rows = 0, page = 0;
        for (int i = 0; i < s.spans; ++i) {
            const NxSpan& span = s.span[i];
            target.starts.push_back(span.start);
            target.page_at.push_back(page);
            target.cu_rows.push_back(rows += span.known + span.drafts);
            page += span.pages;
        }
        return {rows, s.spans, s.tokens, target.starts.data(), target.page_at.data(), target.cu_rows.data(), nullptr,
                table};
    }

    // found <- the target's choices after each root and draft.
    void choose_all(const NxStep& s, const NxRequest* requests, const NxBatch& b) {
        state_rows.clear();
        draws.clear();
        for (int i = 0; i < s.spans; ++i) {
            const NxSpan& span = s.span[i];
            if (!span.chooses()) continue;
            for (int j = 0; j <= span.drafts; ++j) {
                state_rows.push_back(b.cu_rows[i] + span.known - 1 + j);
                draws.push_back({requests[i].sampling, false});
                draws.back().by.index = uint32_t(span.length() + j);
            }
        }
        const int n = int(state_rows.size());
        if (!n) return;
        {
            const TileUse use;
            const bool drafts = s.max_steps > 0;
            if (!ranks) logits(s.hidden, state_rows.data(), n, s.vocab, s.scores, drafts);
            else score(head_input(s.hidden, state_rows.data(), n), n, target_head(drafts), s.vocab);
        }
        if (ranks) choose_on_ranks(0, s.vocab, nullptr, s.vocab);
        else choose_on_one_rank(s.scores, s.vocab);
    }

    void verify(const NxStep& s) {
        const Best* own = found.data();
        const int32_t* tokens = s.tokens;
        for (int i = 0; i < s.spans; ++i) {
            const NxSpan& span = s.span[i];
            NxSpanResult& result = s.results[i] = {0, -1, -1, 0};
            tokens += span.known;
            if (span.chooses()) {
                int32_t& n = result.accepted;
                while (n < span.drafts && own[n].token() == tokens[n]) ++n;
                result.token = own[n].token();
                own += span.drafts + 1;
            }
            tokens += span.drafts;
        }
    }

    void count(const NxStep& s) {
        std::fill(s.work, s.work + ROWS, 0);
        for (int i = 0; i < s.spans; ++i) {
            const NxSpan& span = s.span[i];
            if (!span.chooses()) continue;
            s.work[DECODING] += 1;
            s.work[DRAFTS] += span.drafts;
            s.work[CONTEXT] += span.start;
        }
    }

    // Runs the module over the committed positions. Requests that go on get drafts.
    void draft_all(const NxStep& s, const NxRequest* requests, const NxBatch& b) {
        drafter.clear();
        state_rows.clear();
        for (std::vector<int32_t>* v : {&chain_spans, &num_steps}) v->clear();
        sampling.clear();
        cut.clear();
        for (int i = 0; i < s.spans; ++i)
            if (s.span[i].flags & NxSpan::EXTENDS) add_committed(s, i, requests[i], b);
        const int rows = int(drafter.tokens.size()), count = int(chain_spans.size());
        if (!rows) return;
        made.assign(size_t(count), 0);
        kept.assign(size_t(count), 0);
        passes.assign(size_t(s.max_steps) + 1, 0);
        const NxBatch committed{rows, int32_t(drafter.starts.size()), drafter.tokens.data(), drafter.starts.data(),
                                drafter.page_at.data(), drafter.cu_rows.data(), nullptr, b.table};
        chains(committed, s.hidden, 0,
               {state_rows.data(), chain_spans.data(), sampling.data(), num_steps.data(), count, s.max_steps, s.vocab,
                s.scores, s.cutoff, cut.data(), s.guesses, s.bins, made.data(), kept.data(), passes.data()});
        s.work[EXTENDED] = rows;
        for (int depth = 1; passes[size_t(depth) - 1]; ++depth)
            if (passes[size_t(depth)]) s.work[ROWS + s.work[PASSES]++] = passes[size_t(depth)];
        for (int i = 0, chain = 0; i < s.spans; ++i)
            if (s.results[i].kept == 0) {
                s.results[i].kept = kept[size_t(chain)];
                s.results[i].made = made[size_t(chain++)];
            }
    }

    // Adds the committed positions of span i to the module's input, each with the token after it, and the chain
    // after them.
    void add_committed(const NxStep& s, int i, const NxRequest& request, const NxBatch& b) {
        const NxSpan& span = s.span[i];
        NxSpanResult& result = s.results[i];
        const bool chosen = result.token >= 0;
        const int first = b.cu_rows[i], tokens = result.accepted + chosen;
        if (span.chooses() && !tokens) return;  // nothing was committed in this step
        // If the target made no choice after them, the last draft is the next root.
        const int rows = span.known + (span.chooses() ? tokens - 1 : 0);
        for (int j = 0; j < rows; ++j) {
            const bool last = j + 1 == rows && (chosen || !span.chooses());
            drafter.tokens.push_back(!last ? s.tokens[first + j + 1] : chosen ? result.token : span.following);
            state_rows.push_back(first + j);
        }
        drafter.starts.push_back(span.start - span.draft_page * model.page);
        drafter.page_at.push_back(b.page_at[i] + span.draft_page);
        drafter.cu_rows.push_back(int32_t(drafter.tokens.size()));
        if (!span.chooses()) return;
        const int steps = std::min(span.num_steps, request.limit - span.length() - tokens - 1);
        const int32_t* const accepted = s.tokens + first + span.known;
        if (steps <= 0 || (chosen && ends(request, result.token)) ||
            std::any_of(accepted, accepted + result.accepted, [&](int32_t token) { return ends(request, token); }))
            return;
        result.kept = 0;
        chain_spans.push_back(int32_t(drafter.starts.size()) - 1);
        num_steps.push_back(steps);
        sampling.push_back(request.sampling);
        sampling.back().index = uint32_t(span.length() + tokens);
        cut.push_back((span.flags & NxSpan::CUT) != 0);
    }

    static bool ends(const NxRequest& request, int32_t token) {
        return std::find(request.ends, request.ends + request.end_count, token) != request.ends + request.end_count;
    }
};

}  // namespace
