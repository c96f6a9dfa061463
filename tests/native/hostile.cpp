// Runs the native kernels on hostile shapes, for the sanitizers: tests/native/test_sanitizers.py compiles this
// file, which includes nextn.cpp, and runs it. Results are compared only if two ways have to give the same
// bits. tests/unit/ops/cpu checks that the numbers are right.
//
// Every buffer has exactly the size that the interface requires, so that each access beyond it is found.
//
// NX_FEW_SHAPES: a random quarter of the combinations, and fewer models.
#include "../../csrc/nextn.cpp"

#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <unistd.h>

namespace {

// LONG_PROMPT: rows of a prompt on ranks, more than a kernel multiplies at once.
#if defined(__SANITIZE_THREAD__) || defined(NX_FEW_SHAPES)  // the former makes every memory access a call
constexpr int LOOPS = 500, MOST_THREADS = 3, LONG_PROMPT = 110;
#else
constexpr int LOOPS = 2000, MOST_THREADS = 9, LONG_PROMPT = 270;
#endif

std::mt19937 random_bits(1), lots(1);

bool left_out() {
#if defined(NX_FEW_SHAPES)
    return lots() % 4;
#else
    return false;
#endif
}

void must(bool holds, const char* what) {
    if (holds) return;
    std::fprintf(stderr, "hostile: %s\n", what);
    std::exit(1);
}

std::vector<float> floats(int64_t n) {
    std::normal_distribution<float> normal;
    std::vector<float> v(static_cast<size_t>(n));
    for (float& x : v) x = normal(random_bits);
    return v;
}

std::vector<uint16_t> halves(int64_t n, float scale = 1.f) {
    std::vector<uint16_t> v(static_cast<size_t>(n));
    size_t i = 0;
    for (float x : floats(n)) v[i++] = float_bf16(x * scale);
    return v;
}

template <class T> bool same(const std::vector<T>& a, const std::vector<T>& b) {
    return a.size() == b.size() && (a.empty() || !memcmp(a.data(), b.data(), a.size() * sizeof(T)));
}

int up(int n, int to) { return (n + to - 1) / to * to; }

struct Matrix {  // a random weight, packed into memory of exactly its size
    std::vector<uint8_t> data;
    std::vector<float> scales;
    NxWeight w{};

    Matrix() = default;
    Matrix(int n_out, int n_in, int kind, int members = 1, int block = 0) {
        if (is_coded(kind)) {
            coded(n_out, n_in, kind, members, block);
            return;
        }
        const int bytes = int(element_bytes(kind)), outs = up(n_out, 16), ins = kind == F32 ? n_in : up(n_in, 2);
        if (kind == INT8) block = ins;
        const int blocks = kind == E4M3 || kind == INT8 ? (ins + block - 1) / block : 0;
        data.assign(size_t(members) * outs * ins * bytes, 0);
        if (blocks) {
            scales = floats(int64_t(members) * outs * blocks);
            for (float& s : scales) s = 0.01f;
        }
        w = {data.data(), blocks ? scales.data() : nullptr, outs, ins, kind, block, int64_t(outs) * ins * bytes,
             int64_t(outs) * blocks};
        for (int m = 0; m < members; ++m) {
            const std::vector<float> f = floats(int64_t(n_out) * n_in);
            std::vector<uint8_t> source(size_t(n_out) * n_in * bytes);
            for (size_t i = 0; i < f.size(); ++i) {
                const float x = f[i] / std::sqrt(float(n_in));
                const uint16_t half = float_bf16(x);
                if (kind == F32) memcpy(source.data() + 4 * i, &x, 4);
                else if (kind == BF16) memcpy(source.data() + 2 * i, &half, 2);
                else source[i] = uint8_t(int(f[i] * 20.f)) & (kind == E4M3 ? 0xf7 : 0xff);
            }
            nx_pack(source.data(), n_out, n_in, n_in, 0, data.data() + m * w.stride, outs, ins, kind, 0, 1);
        }
    }

    // Makes a few-bit weight from random blocks with small f16 scales. n_in: whole blocks. block: for INT4 and
    // INT4Z only.
    void coded(int n_out, int n_in, int kind, int members, int block) {
        const int outs = up(n_out, 16);
        if (kind != INT4 && kind != INT4Z) block = 0;
        const int64_t stride = outs * nx_output_bytes(kind, n_in, block);
        data.assign(size_t(members * stride), 0);
        w = {data.data(), nullptr, outs, n_in, kind, block, stride, 0, 0};
        const auto bytes = [](int64_t n) {
            std::vector<uint8_t> v(static_cast<size_t>(n));
            for (uint8_t& b : v) b = uint8_t(random_bits());
            return v;
        };
        const uint16_t scale = 0x2000;
        for (int m = 0; m < members; ++m) {
            uint8_t* to = data.data() + m * stride;
            if (block) {
                const std::vector<uint8_t> codes = bytes(int64_t(n_out) * n_in / 2);
                const std::vector<uint8_t> zeros = bytes(int64_t(n_out) * n_in / block);
                const std::vector<uint16_t> scales(zeros.size(), scale);
                nx_pack_codes(codes.data(), scales.data(), kind == INT4Z ? zeros.data() : nullptr, n_out, to, outs,
                              n_in, kind, block, 0, 1);
                continue;
            }
            const CodedLayout& l = coded_layout(kind);
            const int size = gguf_block_bytes(kind), inputs = l.cell * l.cells;
            std::vector<uint8_t> blocks = bytes(int64_t(n_out) * n_in / inputs * size);
            for (uint8_t* b = blocks.data(); b < blocks.data() + blocks.size(); b += size) {
                memcpy(kind == Q6_K ? b + 208 : b, &scale, 2);
                if (l.mins) memcpy(b + 2, &scale, 2);
            }
            nx_pack_blocks(blocks.data(), n_out, to, outs, n_in, kind, 0, 1);
        }
    }
};

#if defined(__SANITIZE_THREAD__)  // other kinds of weights use other loops, but no other threads
constexpr int CODED_KINDS[] = {INT4}, EXPERT_KINDS[] = {BF16, E4M3, INT8, INT4};
#else
constexpr int CODED_KINDS[] = {INT4, INT4Z, Q4_0, Q8_0, Q4_K, Q5_K, Q6_K, Q4_1, Q5_0, Q5_1};
constexpr int EXPERT_KINDS[] = {BF16, E4M3, INT8, INT4, Q8_0, Q6_K};
#endif

// Multiplies rows by this weight in every way that the library has. The last of several rows has an input that
// is not finite, and one that is almost 0.
void products(void* pool, Matrix& m, std::initializer_list<int> counts) {
    for (int way = 0; way <= BY_BYTES; ++way) {
        if (way && !(nx_ways(m.w.kind) >> way & 1)) continue;
        m.w.way = way;
        for (int rows : counts) {
            const std::vector<float> f = floats(int64_t(rows) * m.w.n_in);
            std::vector<uint16_t> h = halves(int64_t(rows) * m.w.n_in);
            if (rows > 1) *h.rbegin() = 0x7f80, h[h.size() - size_t(m.w.n_in)] = 1;
            const void* x = m.w.kind == F32 ? static_cast<const void*>(f.data()) : h.data();
            std::vector<float> y(size_t(rows) * m.w.n_out), one(size_t(m.w.n_out));
            nx_linear(pool, x, rows, &m.w, y.data());
            if (!rows) continue;
            nx_linear(pool, x, 1, &m.w, one.data());
            must(!memcmp(one.data(), y.data(), one.size() * 4), "a row's bits depend on its company");
        }
    }
}

void linears(void* pool) {
    for (int kind : {F32, BF16, E4M3, INT8})
        for (int n_out : {1, 16, 63, 64, 65, 200})
            for (int n_in : {1, 2, 31, 64, 129}) {
                if (left_out()) continue;
                Matrix m(n_out, n_in, kind, 1, 14);
                products(pool, m, {0, 1, 5, 6, 7, 97});
            }
    for (int kind : CODED_KINDS)
        for (int n_out : {1, 16, 65, 200})
            for (int blocks : {1, 2}) {
                if (left_out()) continue;
                Matrix m(n_out, 256 * blocks, kind, 1, 32);
                products(pool, m, {0, 1, 5, 6, 7, 97});
            }
    for (int group : {64, 128}) {
        Matrix m(80, 3 * group, group == 64 ? INT4 : INT4Z, 1, group);
        products(pool, m, {1, 7});
    }
    // Packing: transposed, interleaved, and in parts.
    std::vector<uint16_t> source = halves(37 * 9), to(size_t(96) * 10);
    nx_pack(source.data(), 37, 9, 37, 1, to.data(), 48, 10, BF16, 0, 1);
    nx_pack(source.data(), 37, 9, 9, 0, to.data(), 96, 10, BF16, 1, 2);
    nx_pack(source.data(), 37, 9, 9, 0, to.data(), 96, 10, BF16, 59, 1);
    nx_pack(source.data(), 0, 9, 9, 0, to.data(), 96, 10, BF16, 0, 1);
}

struct Batch {
    std::vector<int32_t> tokens, starts, page_at, cu_rows{0}, cu_paths, table{0};
    int pages = 0;
    NxBatch b{};

    // lengths: (start, rows) of each span. as_tree: each row's path is all rows before it. The pages are in
    // reverse order and not contiguous.
    Batch(const std::vector<std::pair<int, int>>& lengths, int page, bool as_tree) {
        for (auto [start, rows] : lengths) pages += (start + rows + page - 1) / page;
        int next = pages;
        for (auto [start, rows] : lengths) {
            starts.push_back(start);
            page_at.push_back(int(table.size()));
            for (int i = 0; i < (start + rows + page - 1) / page; ++i) table.push_back(next--);
            for (int i = 0; i < rows; ++i) tokens.push_back((i * 7 + start) % 40);
            cu_rows.push_back(int(tokens.size()));
        }
        cu_paths.push_back(int(table.size()));
        for (size_t s = 0; s < lengths.size(); ++s)
            for (int row = 0; row < lengths[s].second; ++row) {
                const int start = lengths[s].first;
                for (int p = start; p <= start + row; ++p)
                    table.push_back(table[size_t(page_at[s] + p / page)] * page + p % page);
                cu_paths.push_back(int(table.size()));
            }
        b = {int(tokens.size()), int(starts.size()), tokens.data(), starts.data(), page_at.data(), cu_rows.data(),
             as_tree ? cu_paths.data() : nullptr, table.data()};
    }

    // Rows of the first span alone, from its row `at` on.
    NxBatch part(const int32_t& at, int rows) const {
        static int32_t begins[2];
        begins[1] = rows;
        return {rows, 1, tokens.data() + at, &at, page_at.data(), begins, nullptr, table.data()};
    }

    int slots(int page) const { return (pages + 1) * page; }
};

const std::vector<std::vector<std::pair<int, int>>> LENGTHS = {
    {}, {{0, 0}}, {{0, 1}}, {{3, 1}}, {{4, 1}}, {{255, 1}}, {{256, 1}}, {{254, 5}, {0, 0}, {15, 1}, {16, 2}},
    {{0, 19}, {511, 2}}, {{0, 64}}, {{260, 7}, {600, 40}},
};

// Heads of MLA, which all read the same entry, and grouped heads: two groups; one has half of a key-value
// head's queries.
const NxHeads HEADS[] = {
    {1, 1, 0, 1, 64, 32, 0, 64, 32}, {1, 5, 0, 1, 64, 32, 0, 64, 32}, {2, 3, 1, 2, 96, 32, 32, 64, 19}};

void attentions(void* pool, void* alone) {
    for (int page : {1, 4, 16})
        for (const auto& lengths : LENGTHS)
            for (const NxHeads& of : HEADS) {
                if (left_out()) continue;
                const Batch chains(lengths, page, false), trees(lengths, page, true);
                const int width = ((of.first + of.groups - 1) / of.repeat + 1) * of.stride;
                const int64_t vectors = int64_t(chains.b.rows) * of.groups * of.heads;
                std::vector<uint16_t> cache = halves(int64_t(chains.slots(page)) * width);
                const std::vector<uint16_t> q = halves(vectors * of.key, 0.3f);
                std::vector<uint16_t> out(size_t(vectors) * of.columns), again = out;
                nx_attention(alone, &chains.b, cache.data(), width, page, &of, q.data(), out.data());
                const auto check = [&](void* on, const Batch& batch, const char* what) {
                    nx_attention(on, &batch.b, cache.data(), width, page, &of, q.data(), again.data());
                    must(same(out, again), what);
                };
                check(pool, chains, "attention's bits depend on the number of threads");
                check(alone, trees, "a tree that is a chain has not its bits");
                check(pool, trees, "a tree's bits depend on the number of threads");
            }
}

struct Block {
    Matrix router, gate_up, down, shared_gate_up, shared_down;
    std::vector<float> bias;
    NxFeedForward f{};

    Block(int hidden, int inner, int experts, int shared, int groups, int kind) {
        const int open = groups > 1 ? groups / 2 : 1;
        f.experts = experts, f.groups = groups, f.top_groups = open, f.top_k = experts ? 2 : 0;
        f.normalize = 1, f.scale = 2.5f;
        if (experts) {
            router = Matrix(experts, hidden, F32);
            bias = floats(experts);
            gate_up = Matrix(2 * up(inner, 16), hidden, kind, experts, 32);
            down = Matrix(hidden, inner, kind, experts, 32);
            f.router = router.w, f.gate_up = gate_up.w, f.down = down.w, f.bias = bias.data();
        }
        if (shared) {
            shared_gate_up = Matrix(2 * up(shared, 16), hidden, kind, 1, 32);
            shared_down = Matrix(hidden, shared, kind, 1, 32);
            f.shared_gate_up = shared_gate_up.w, f.shared_down = shared_down.w;
        }
    }
};

void feed_forwards(void* pool, void* alone) {
    for (int kind : EXPERT_KINDS)
        for (auto [hidden, inner, experts, shared, groups] : std::vector<std::array<int, 5>>{
                 {33, 13, 5, 39, 1}, {64, 32, 64, 0, 8}, {70, 0, 0, 17, 1}, {1, 1, 2, 1, 1}, {16, 3, 1024, 3, 2},
                 {256, 256, 5, 256, 1}}) {
            if (is_coded(kind) && hidden % 256) continue;
            Block block(hidden, inner, experts, shared, groups, kind);
            const int64_t stride = up(hidden, 32);
            for (auto [rows, fp8] : std::vector<std::array<int, 2>>{{0, 1}, {1, 0}, {3, 1}, {50, 0}, {50, 1}}) {
                if (left_out()) continue;
                block.f.fp8_rows = fp8;
                std::vector<float> h(size_t(rows * stride)), x = h;
                std::vector<uint16_t> h16(h.size());
                for (int i = 0; i < rows; ++i)
                    for (int c = 0; c < hidden; ++c) {
                        h[size_t(i * stride + c)] = floats(1)[0];
                        h16[size_t(i * stride + c)] = float_bf16(h[size_t(i * stride + c)]);
                    }
                std::vector<float> y = x, weights(size_t(rows) * block.f.top_k);
                std::vector<int32_t> ids(weights.size());
                nx_feed_forward(pool, &block.f, h.data(), h16.data(), rows, stride, x.data(), ids.data(),
                                weights.data());
                nx_feed_forward(alone, &block.f, h.data(), h16.data(), rows, stride, y.data(), nullptr, nullptr);
                must(same(x, y), "the feed-forward's bits depend on the number of threads");
            }
        }
}

// Chains after three of four spans, in one call and guess by guess. states: `hidden`, 18 rows.
void chains(void* engine, const std::vector<float>& states, int hidden, int vocab) {
    Batch batch({{0, 9}, {0, 3}, {2, 4}, {14, 2}}, 4, false);  // the pages have room for 3, 1 and 2 more, and no more
    std::vector<int32_t> rows(size_t(batch.b.rows));
    std::vector<float> taken;
    for (size_t i = 0; i < rows.size(); ++i) {
        rows[i] = int32_t(rows.size() - 1 - i);
        const auto at = states.begin() + int64_t(rows[i]) * hidden;
        taken.insert(taken.end(), at, at + hidden);
    }
    const int32_t after[3] = {0, 2, 3};
    NxSampling sampling[3];
    const int guesses[3] = {4, 3, 1};
    for (int i = 0; i < 3; ++i) sampling[i] = {7, 1, uint32_t(20 + i), i == 1 ? 0.f : 1.f, 0.9f, 0.f, 0, 1};
    std::vector<float> scores(3 * size_t(vocab));
    std::vector<int32_t> tokens(12), made(3), kept(3), passes(4);
    std::vector<uint8_t> bins(12, 255);
    NxChains asked{rows.data(), after, sampling, guesses, 3, 4, vocab, scores.data(), nullptr, nullptr,
                   tokens.data(), bins.data(), made.data(), kept.data(), passes.data()};
    const auto draw = [&](const std::vector<float>& from) {
        for (auto* out : {&made, &kept, &passes}) std::fill(out->begin(), out->end(), 0);
        nx_chains(engine, &batch.b, from.data(), 0, &asked);
    };
    draw(states);
    must(std::equal(made.begin(), made.end(), guesses), "a chain is not as long as it was to be");
    must(kept == made, "a guess of a chain without a cutoff is not kept");
    must(passes == std::vector<int32_t>({3, 2, 2, 1}), "chains open at each depth");
    const std::vector<int32_t> whole = tokens;

    // The same with a cutoff for the last two chains: one that keeps all guesses, one that ends chains, one
    // that keeps none.
    const uint8_t cut[3] = {0, 1, 1};
    NxCutoff cutoff{};
    for (int i = 0; i < NxCutoff::BINS; ++i) {
        if (i < NxCutoff::BINS - 1) cutoff.edge[i] = float(i + 1) / NxCutoff::BINS;
        cutoff.rate[i] = 1.f;
    }
    cutoff.mean_rate = 1.f;
    asked.cutoff = &cutoff;
    asked.cut = cut;
    draw(states);
    must(std::equal(made.begin(), made.end(), guesses) && kept == made, "a cutoff that keeps all ends a chain");
    for (int i = 0; i < 3; ++i)
        for (int depth = 0; depth < guesses[i]; ++depth) {
            must(tokens[size_t(4 * i + depth)] == whole[size_t(4 * i + depth)], "a guess depends on the cutoff");
            must(!cut[i] || bins[size_t(4 * i + depth)] < NxCutoff::BINS, "a guess without a bin");
        }
    cutoff.guess_cost = 2.f;
    draw(states);
    must(made == std::vector<int32_t>({4, 1, 1}), "a chain goes on though it is not worth it");
    cutoff.row_cost = 2.f;
    draw(states);
    must(kept == std::vector<int32_t>({4, 0, 0}), "a guess below what is kept is verified");
    asked.cutoff = nullptr;
    // If the states are not numbers, no guess can be made.
    draw(std::vector<float>(states.size(), NAN));
    must(made == std::vector<int32_t>(3), "a guess from states that are not numbers");

    std::vector<float> drafted(taken.size()), row(size_t(hidden), 0.f), z(size_t(vocab), 0.f);
    nx_draft(engine, &batch.b, taken.data(), 0, drafted.data());
    for (int i = 0; i < 3; ++i) {
        const size_t span = size_t(after[i]);
        const int first = batch.cu_rows[span], end = batch.cu_rows[span + 1];
        std::copy_n(drafted.data() + int64_t(end - 1) * hidden, hidden, row.data());
        for (int depth = 0; depth < guesses[i]; ++depth) {
            NxSampling s = sampling[i];
            s.index += uint32_t(depth);
            int32_t token = -1;
            nx_draft_logits(engine, row.data(), 1, vocab, z.data());
            nx_choose(z.data(), 1, vocab, &s, &token, nullptr);
            must(token == whole[size_t(4 * i + depth)], "a guess depends on how it was asked for");
            const int32_t next = batch.starts[span] + end - first + depth, begins[2] = {0, 1};
            const NxBatch one{1, 1, &token, &next, &batch.page_at[span], begins, nullptr, batch.table.data()};
            if (depth + 1 < guesses[i]) nx_draft(engine, &one, row.data(), 0, row.data());
        }
    }
    NxChains none{};
    none.rows = rows.data();
    none.vocab = vocab;
    nx_chains(engine, &batch.b, states.data(), 0, &none);
}

// A step in one call: a prompt chunk, a prompt's end, a root with drafts of which two are accepted, and a span
// that does not extend. Every array has exactly the required length.
void steps(void* engine, int hidden, int vocab) {
    Batch batch({{0, 9}, {0, 3}, {2, 4}, {14, 1}}, 4, false);
    const int rows = batch.b.rows, roots[3] = {11, 12, 16}, positions[3] = {3, 3, 15};
    std::vector<float> states(size_t(rows) * hidden), again = states, z(static_cast<size_t>(vocab));
    const NxSampling by[2] = {{7, 1, 0, 0.7f, 0.9f, 0.f, 5, 1}, {1, 0, 0, 0.f, 1.f, 0.f, 0, 1}};
    const auto choice = [&](int row, int position, const NxSampling& sampling) {
        NxSampling s = sampling;
        s.index = uint32_t(position);
        int32_t token = -1;
        nx_forward(engine, &batch.b, states.data());
        nx_logits(engine, states.data() + int64_t(row) * hidden, 1, vocab, z.data());
        nx_choose(z.data(), 1, vocab, &s, &token, nullptr);
        return token;
    };
    batch.tokens[13] = choice(12, 3, by[0]);
    batch.tokens[14] = choice(13, 4, by[0]);
    const int32_t bonus = choice(14, 5, by[0]), first = choice(11, 3, by[1]);
    batch.tokens[15] = (bonus + 1) % vocab;

    const NxSpan spans[4] = {{0, 9, 0, 5, 3, 0, NxSpan::EXTENDS, 0}, {0, 3, 0, -1, 1, 2, NxSpan::EXTENDS, 0},
                             {2, 1, 3, -1, 2, 4, NxSpan::EXTENDS, 0}, {14, 1, 0, -1, 4, 0, 0, 0}};
    std::vector<NxSpanResult> results(4);
    std::vector<int32_t> guesses(8), work(9), table(batch.table.begin() + 1, batch.table.end());
    std::vector<uint8_t> bins(8);
    std::vector<float> scores(6 * size_t(vocab));
    const NxStep step{4, vocab, batch.tokens.data(), spans, again.data(), scores.data(), nullptr, 1, 4, results.data(),
                      guesses.data(), bins.data(), work.data()};
    const NxRequest requests[4] = {{by[0], nullptr, 0, 99}, {by[1], &first, 0, 99}, {by[0], &first, 0, 11}, {by[1], nullptr, 0, 99}};
    nx_step(engine, &step, requests, table.data());
    choice(roots[0], positions[0], by[1]);
    must(!memcmp(states.data(), again.data(), states.size() * 4), "a step's states");
    must(results[0].token == -1 && results[0].kept == -1, "a part of a prompt chooses nothing");
    must(results[1].accepted == 0 && results[1].token == first && results[1].kept == 2, "a prompt's first token");
    must(results[2].accepted == 2 && results[2].token == bonus && results[2].kept == 4, "drafts that hold");
    must(results[3].token == choice(roots[2], positions[2], by[1]) && results[3].kept == -1, "a request without drafts");
    must(work == std::vector<int32_t>({15, 3, 3, 16, 3, 2, 1, 1, 0}), "what a step ran");

    NxRequest ending[4];
    std::copy(requests, requests + 4, ending);
    ending[1].end_count = 1;  // it ends with its first token
    ending[2].limit = 8;      // one token after the bonus, and no draft
    nx_step(engine, &step, ending, table.data());
    must(results[1].kept == -1 && results[2].kept == 1, "drafts of requests that end");
}

// Attention of a model: latent, with queries from two products or one; grouped, from one product or three.
enum Kinds { COMPRESSED, LATENT, GROUPED, APART };

// Two layers and a NextN module of odd sizes. A whole sequence has to give the same as the same sequence in two
// parts.
void models(int threads, int kind, Kinds form) {
    const bool grouped = form >= GROUPED;
    const int hidden = 45, heads = grouped ? 6 : 3, kv_heads = grouped ? 2 : 0, nope = 5, rope = 6, value = 7;
    const int q_rank = 13, rank = grouped ? 0 : 17, vocab = 41, page = 4;
    const int queries = heads * (nope + rope), keys = kv_heads * (nope + rope);
    const int q_in = form == COMPRESSED ? q_rank : queries, width = grouped ? kv_heads * 64 : 32, positions = 320;
    const int outputs = form == APART ? queries : grouped ? queries + keys + kv_heads * value : q_in + rank + rope;
    std::vector<Block> blocks;
    blocks.emplace_back(hidden, 0, 0, 37, 1, kind);
    blocks.emplace_back(hidden, 11, 6, 22, 3, kind);
    blocks.emplace_back(hidden, 11, 6, 0, 1, kind);
    const std::vector<float> ones(64, 1.f), bias = floats(up(queries + keys + kv_heads * value, 32));
    std::vector<float> scale(64, 0.f);
    std::copy_n(ones.begin(), hidden, scale.begin());
    std::vector<float> q_scale(32, 0.f), kv_scale(32, 0.f);
    std::fill_n(q_scale.begin(), grouped ? nope + rope : q_rank, 1.f);
    std::fill_n(kv_scale.begin(), grouped ? nope + rope : rank, 1.f);
    const auto apart = [&](int n) { return form == APART ? Matrix(n, hidden, kind, 1, 32) : Matrix(); };
    const Matrix down(outputs, hidden, kind, 1, 32), q_up(queries, q_rank, kind, 1, 32),
        key_up = grouped ? apart(keys) : Matrix(rank, nope, BF16, heads),
        value_up = grouped ? apart(kv_heads * value) : Matrix(value, rank, BF16, heads),
        out(hidden, heads * value, kind, 1, 32), head(vocab, hidden, BF16), eh_proj(hidden, 2 * hidden, BF16);
    const NxNextN module{scale.data(), scale.data(), scale.data(), eh_proj.w};
    std::vector<NxLayer> layers;
    for (const Block& block : blocks) {
        NxLayer l{};
        l.attention_norm = l.mlp_norm = scale.data();
        l.down = down.w, l.q_up = q_up.w, l.key_up = key_up.w, l.value_up = value_up.w, l.out = out.w, l.mlp = block.f;
        if (form == COMPRESSED || form == APART) l.q_norm = q_scale.data();
        if (form != GROUPED) l.kv_norm = kv_scale.data();
        if (grouped) l.bias = bias.data(), l.out_bias = form == APART ? scale.data() : nullptr;
        layers.push_back(l);
    }
    const std::vector<uint16_t> embedding = halves(vocab * hidden);
    const std::vector<float> cosine = floats(positions * rope / 2), sine = floats(positions * rope / 2);
    Batch whole({{0, 270}, {0, 9}, {3, 0}}, page, false);
    const int slots = whole.slots(page);
    std::vector<uint16_t> cache(size_t(3) * slots * width), other = cache;
    NxModel model{hidden, heads, nope, rope, rank, value, q_in, kv_heads, 0, heads, vocab, 2, 1e-6f, 1e-6f, 0.3f,
                  embedding.data(), cosine.data(), sine.data(), layers.data(), scale.data(), head.w, &module, 1, head.w,
                  nullptr, vocab, cache.data(), int64_t(slots) * width, width, page, nullptr};
    void* engine = nx_engine_new(&model, threads, 3);
    model.cache = other.data();
    void* second = nx_engine_new(&model, 1, 3);

    const int rows = whole.b.rows;
    std::vector<float> got(size_t(rows) * hidden), drafted = got, part(size_t(rows) * hidden);
    nx_forward(engine, &whole.b, got.data());
    must(nx_engine_expert_bytes(engine) > 0 && nx_engine_expert_bytes(engine) == 0, "experts are counted once");
    nx_draft(engine, &whole.b, got.data(), 0, drafted.data());
    for (int at : {0, 251}) {  // the first request alone: 251 rows, then 19
        const NxBatch some = whole.part(at, at ? 19 : 251);
        const size_t floats_in = size_t(some.rows) * hidden;
        nx_forward(second, &some, part.data());
        must(!memcmp(part.data(), got.data() + size_t(at) * hidden, floats_in * 4), "bits depend on chunks");
        nx_draft(second, &some, got.data() + size_t(at) * hidden, 0, part.data());
        must(!memcmp(part.data(), drafted.data() + size_t(at) * hidden, floats_in * 4), "drafts depend on chunks");
    }
    std::vector<float> logits(size_t(rows) * vocab);
    nx_logits(engine, got.data(), rows, vocab, logits.data());
    nx_logits(engine, got.data(), 0, vocab, logits.data());
    for (float z : logits) must(std::isfinite(z), "a logit is not finite");
    std::vector<float> guesses(logits.size());
    nx_draft_logits(engine, got.data(), rows, vocab, guesses.data());
    must(same(logits, guesses), "the drafter's head is the target's here");

    // A draft vocabulary of three tokens. The last one is the last of the vocabulary.
    const Matrix small(3, hidden, INT8);
    const std::vector<int32_t> ids = {5, 0, vocab - 1};
    NxModel choosy = model;
    choosy.draft_head = small.w;
    choosy.draft_ids = ids.data();
    choosy.draft_vocab = 3;
    void* third = nx_engine_new(&choosy, threads, 3);
    nx_draft_logits(third, got.data(), rows, vocab, guesses.data());
    for (size_t i = 0; i < guesses.size(); ++i) {
        const int token = int(i % size_t(vocab));
        const bool open = std::find(ids.begin(), ids.end(), token) != ids.end();
        must(open ? std::isfinite(guesses[i]) : guesses[i] == -INFINITY, "a token outside of the draft vocabulary");
    }
    nx_engine_free(third);

    for (const auto& lengths : LENGTHS)
        if (lengths.empty() || lengths[0].first + lengths[0].second < 300)
            for (bool as_tree : {false, true}) {
                Batch batch({lengths.begin(), lengths.begin() + (lengths.size() > 1 ? 1 : int(lengths.size()))}, page,
                            as_tree);
                std::vector<float> x(size_t(batch.b.rows) * hidden), y = x;
                nx_forward(engine, &batch.b, x.data());
                nx_draft(engine, &batch.b, x.data(), 0, y.data());
            }
    chains(engine, got, hidden, vocab);
    steps(engine, hidden, vocab);
    nx_engine_free(engine);
    nx_engine_free(second);
}

// A socket between each two of `size` ranks.
struct Sockets {
    std::vector<std::vector<int32_t>> of;

    explicit Sockets(int size) : of(size_t(size), std::vector<int32_t>(size_t(size), -1)) {
        for (int a = 0; a < size; ++a)
            for (int b = 0; b < a; ++b) {
                int ends[2];
                must(!socketpair(AF_UNIX, SOCK_STREAM, 0, ends), "no sockets");
                of[size_t(a)][size_t(b)] = ends[0], of[size_t(b)][size_t(a)] = ends[1];
            }
    }
    ~Sockets() {
        for (const std::vector<int32_t>& some : of)
            for (const int32_t end : some) if (end >= 0) close(end);
    }
};

// Ranks as threads, each with its own outputs of every weight, in shared memory of exactly the required size.
// shards > 0: with sockets, and each rank has its slice of some of the experts.
void on_ranks(int size, int kind, int shards = 0, int kv_heads = 0) {
    const int hidden = 128, heads = 4, nope = 40, rope = 24, rank = 64, value = 32, q_rank = 64, vocab = 200, page = 4;
    const int width = 96 * std::max(1, kv_heads), positions = 320, inner = 128, each = heads / size;
    const Block dense(hidden, 0, 0, inner, 1, kind), sparse(hidden, inner, 6, inner, 3, kind);
    const std::vector<float> ones(size_t(hidden), 1.f), cosine = floats(positions * rope / 2),
                             sine = floats(positions * rope / 2);
    const Matrix down(q_rank + rank + rope, hidden, kind, 1, 32), q_up(heads * (nope + rope), q_rank, kind, 1, 32),
        key_up(rank, nope, BF16, heads), value_up(value, rank, BF16, heads), out(hidden, heads * value, kind, 1, 32),
        head(vocab, hidden, BF16), eh_proj(hidden, 2 * hidden, BF16),
        queries(heads * (nope + rope), hidden, kind, 1, 32),
        keys(std::max(1, kv_heads) * (nope + rope), hidden, kind, 1, 32),
        heads_values(std::max(1, kv_heads) * value, hidden, kind, 1, 32);
    const NxNextN module{ones.data(), ones.data(), ones.data(), eh_proj.w};
    const std::vector<uint16_t> embedding = halves(vocab * hidden);
    const Batch batch({{0, LONG_PROMPT}, {0, 9}, {0, 1}}, page, false);
    const int rows = batch.b.rows, slots = batch.slots(page);

    struct Found {
        std::vector<float> hidden, drafted, logits;
        std::vector<int32_t> tokens;
    };
    const int slices = shards ? size / shards : 0, held = shards ? sparse.f.experts / shards : 0;
    const std::vector<int32_t> places{0, 1, 2, 3, 4, 5}, ones_each(6, 1);
    const auto run = [&](NxRanks* ranks, NxWorld* world) {
        const int of = ranks ? size : 1, r = ranks ? ranks->rank : 0;
        const auto cut = [&](const NxWeight& w, int unit, int i, int parts) {
            const int units = (w.n_out + unit - 1) / unit;
            return outputs_of(w, units * i / parts * unit, std::min(w.n_out, units * (i + 1) / parts * unit));
        };
        const auto part = [&](const NxWeight& w, int unit) { return cut(w, unit, r, of); };
        std::vector<NxLayer> layers;
        for (const Block* block : {&dense, &sparse, &sparse}) {
            NxLayer l{};
            l.attention_norm = l.q_norm = l.kv_norm = l.mlp_norm = l.out_bias = ones.data();
            l.out = part(out.w, PANEL), l.mlp = block->f;
            if (kv_heads) {
                l.down = part(queries.w, PANEL), l.key_up = keys.w, l.value_up = heads_values.w;
            } else {
                l.down = down.w, l.q_up = part(q_up.w, PANEL), l.key_up = key_up.w, l.value_up = value_up.w;
                for (NxWeight* w : {&l.key_up, &l.value_up}) w->data += r * (heads / of) * w->stride;
            }
            const bool whole = world && l.mlp.router.data && layers.size() < 2;  // shared experts; the module's are not
            if (whole) l.mlp.own = held, l.mlp.most_replicas = 1;
            if (whole) l.mlp.replicas = places.data(), l.mlp.replica_count = ones_each.data();
            for (NxWeight* w : {&l.mlp.gate_up, &l.mlp.down}) {
                if (!w->data) continue;
                if (whole) w->data += r / slices * held * w->stride;
                if (whole && w->scales) w->scales += r / slices * held * w->scale_stride;
                *w = whole ? cut(*w, PANEL, r % slices, slices) : part(*w, PANEL);
            }
            for (NxWeight* w : {&l.mlp.shared_gate_up, &l.mlp.shared_down})
                if (w->data) *w = part(*w, PANEL);
            layers.push_back(l);
        }
        std::vector<uint16_t> cache(size_t(3) * slots * width);
        const NxWeight own = part(head.w, PANEL);
        const NxModel model{hidden, ranks ? each : heads, nope, rope, rank, value, q_rank, kv_heads, r * each, heads,
                            vocab, 2, 1e-6f, 1e-6f, 0.3f, embedding.data(), cosine.data(), sine.data(), layers.data(),
                            ones.data(), own, &module, 1, own, nullptr, vocab, cache.data(), int64_t(slots) * width,
                            width, page, ranks, world};
        void* engine = nx_engine_new(&model, 1 + r, 3);
        Found found;
        found.hidden.resize(size_t(rows) * hidden);
        found.drafted = found.hidden;
        found.logits.resize(size_t(rows) * vocab);
        for (int again = 0; again < 2; ++again) {  // prompts, one after another, whose logits nobody wants
            if (world) nx_world_step(world, again ? LONG_PROMPT : rows, again ? rows - LONG_PROMPT : 0, again);
            nx_forward(engine, &batch.b, found.hidden.data());
            nx_draft(engine, &batch.b, found.hidden.data(), 0, found.drafted.data());
        }
        nx_logits(engine, found.hidden.data(), rows, vocab, found.logits.data());
        for (int whole : {0, 3, rows}) {
            std::vector<float> some(size_t(whole) * vocab);
            std::vector<int32_t> tokens(size_t(rows - whole)), want = tokens;
            const int first = LONG_PROMPT / 3, next = LONG_PROMPT / 4;
            NxSampling s[3] = {{7, 1, ~0u, 1.f, 1.f, 0.f, 0, first}, {7, 1, 2, 1.f, 0.9f, 0.f, 5, next}, {}};
            s[2].rows = rows - first - next - whole;
            nx_choices(engine, found.hidden.data(), rows, vocab, whole, some.data(), s, tokens.data());
            must(std::equal(some.begin(), some.end(), found.logits.begin()), "logits depend on what is chosen beside");
            if (whole == rows) continue;
            std::vector<float> z(found.logits.begin() + whole * vocab, found.logits.end());
            nx_choose(z.data(), 3, vocab, s, want.data(), nullptr);
            must(tokens == want, "a choice in parts is another one");
            found.tokens = tokens;
        }
        chains(engine, found.hidden, hidden, vocab);
        nx_engine_free(engine);
        return found;
    };
    const Found want = run(nullptr, nullptr);

    NxModel measured{};
    NxLayer any[3]{};
    any[0].down = any[1].down = down.w, any[0].mlp = dense.f, any[1].mlp = sparse.f;
    measured.hidden = hidden, measured.all_heads = heads, measured.value = value, measured.vocab = vocab;
    measured.layers = 2, measured.layer = any, measured.nextn = &module;
    const int64_t bytes = nx_shared_bytes(&measured, 3, rows);
    std::vector<Line> memory(size_t(bytes / 64 + 1));
    std::vector<Found> found(static_cast<size_t>(size));
    std::vector<std::thread> threads;
    const Sockets sockets(size);
    for (int r = 0; r < size; ++r)
        threads.emplace_back([&, r] {
            const int32_t* own = sockets.of[size_t(r)].data();
            NxRanks ranks{r, size, reinterpret_cast<uint8_t*>(memory.data()), nullptr, rows, 50, 0};
            if (shards) ranks.memory = nullptr, ranks.sockets = own;
            NxWorld world{};
            world.rank = r, world.size = size, world.groups = 1, world.shards = shards, world.most_rows = rows;
            world.spins = 50, world.sockets = own, world.dynamic = 1;
            found[size_t(r)] = run(&ranks, shards ? &world : nullptr);
        });
    for (auto& t : threads) t.join();
    for (const Found& f : found)
        must(same(f.hidden, want.hidden) && same(f.drafted, want.drafted) && same(f.logits, want.logits) &&
                 f.tokens == want.tokens, "bits depend on the number of ranks");
}

void choices() {
    for (int vocab : {1, 3, 4, 5, 257, 3000}) {
        for (float temperature : {0.f, 1e-4f, 1.f, 100.f})
            for (int top_k : {0, 1, 2, 300, 100000})
                for (float top_p : {0.f, 0.5f, 1.f}) {
                    if (left_out()) continue;
                    std::vector<float> z = floats(3 * vocab);
                    for (int i = 0; i < vocab; i += 2) z[size_t(vocab + i)] = NAN;
                    for (int i = 0; i < vocab; ++i) z[size_t(2 * vocab + i)] = i % 3 ? -INFINITY : INFINITY;
                    const NxSampling s{~uint64_t(0), ~0u, ~0u, temperature, top_p, top_p / 10.f, top_k,
                                       1};
                    NxSampling all[2] = {s, s};
                    all[1].rows = 2;
                    int32_t tokens[3];
                    float leads[3];
                    nx_choose(z.data(), 2, vocab, all, tokens, top_k == 2 ? leads : nullptr);
                    must(tokens[0] >= 0 && tokens[0] < vocab, "a token outside of the vocabulary");
                    must(tokens[1] == -1 && tokens[2] == -1, "a choice among what is not finite");
                }
    }
    nx_choose(nullptr, 0, 7, nullptr, nullptr, nullptr);
}

// Many short loops, some with pauses that are long enough for workers to fall asleep.
void pools(int threads, int loops) {
    void* handle = nx_pool_new(threads);
    Pool& pool = *static_cast<Pool*>(handle);
    for (int i = 0; i < loops; ++i) {
        const int n = i % 37;
        std::vector<int> done(size_t(n), 0);
        pool.for_each(n, [&](int t, int thread) {
            must(thread >= 0 && thread < pool.threads(), "a thread's number is out of range");
            done[size_t(t)] += t + 1;
        });
        for (int t = 0; t < n; ++t) must(done[size_t(t)] == t + 1, "a task was left out or done twice");
        if (i % 100 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    nx_pool_free(handle);
}

void several_pools_at_once(int loops) {
    std::vector<std::thread> users;
    for (int i = 0; i < 3; ++i) users.emplace_back([i, loops] { pools(2 + i, loops); });
    for (auto& u : users) u.join();
    for (int threads : {0, 1, 2, 17}) nx_pool_free(nx_pool_new(threads));  // freed before they have worked
}

// Reads of exactly `bytes` bytes. nx_read leaves out the last bytes % 512.
void reads() {
    void* pool = nx_pool_new(3);
    for (int64_t bytes : {0, 1, 511, 512, 513, 70000, (2 << 20) + 512, 5 << 20}) {
        std::vector<uint8_t> memory(static_cast<size_t>(bytes));
        for (size_t i = 0; i < memory.size(); i += 8) memory[i] = 1;
        must(nx_read(pool, memory.data(), bytes) == uint64_t(bytes / 512 * 64), "a read adds up");
    }
    nx_pool_free(pool);
}

}  // namespace

int main() {
    must(nx_machine_level() >= 0 && nx_interface() > 0, "the library knows itself");  // first, because it asks for AMX
    several_pools_at_once(LOOPS);
    void* alone = nx_pool_new(1);
    for (int threads = 2; threads <= MOST_THREADS; threads += 7) {
        void* pool = nx_pool_new(threads);
        linears(pool);
        attentions(pool, alone);
        feed_forwards(pool, alone);
        nx_pool_free(pool);
    }
    nx_pool_free(alone);
    models(0, BF16, COMPRESSED);
    models(2, E4M3, COMPRESSED);
    models(7, INT8, LATENT);
    models(2, BF16, GROUPED);
    models(3, E4M3, APART);
    on_ranks(2, BF16, 0, 2);
    on_ranks(2, E4M3, 2);
#if !defined(__SANITIZE_THREAD__) && !defined(NX_FEW_SHAPES)
    on_ranks(2, BF16);
    on_ranks(2, E4M3);
    on_ranks(2, INT4);
    on_ranks(2, BF16, 2);
    on_ranks(2, E4M3, 1);
    on_ranks(2, E4M3, 0, 1);
#endif
    choices();
    std::vector<uint8_t> memory(3 << 20);
    nx_advise(memory.data(), int64_t(memory.size()));
    nx_advise(memory.data(), 0);
    reads();
    std::puts("all shapes ran");
    return 0;
}
