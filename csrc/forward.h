// The forward pass of the model: rows go through all decoder layers, or through a NextN module. It is one call,
// which allocates nothing once the buffers have grown to the largest batch.
#pragma once
#include <memory>

#include "choose.h"
#include "linear.h"
#include "model.h"
#include "norm.h"

namespace {

// Maximum sizes, besides MOST_RANK, of the buffers on the stack. nextn.models.native refuses larger models.
constexpr int MOST_HIDDEN = 16384, MOST_LATENT = 8192;
constexpr int SCORE_ROWS = 64;  // rows whose logits ranks gather at once
// Bytes that a rank can read in the time that a meeting takes in shared memory, and a gathering over sockets.
constexpr int64_t MEETING_WORTH = 128 << 10, GATHER_WORTH = 4 << 20;

struct Engine {
    const std::unique_ptr<Pool> own_pool;
    Pool& pool;
    const NxModel model;
    std::vector<NxLayer> layers;
    std::vector<NxNextN> nextn;
    std::vector<Scratch> scratch;
    std::vector<Span> spans;
    std::vector<int32_t> position;
    std::vector<int32_t> head_begin, head_rows;  // vectors sorted by head: each head's first; row and head of each
    std::vector<float> x, h, a, q;
    Shared<float> added;  // to be added to the residual stream x before x is read again
    Shared<float> projected[2];  // outputs of `down` and of a module's eh_proj, if each rank computes some
    std::vector<Line> parts;
    std::vector<uint16_t> h16, q_latent, q_nope, query, mixed;
    Shared<uint16_t> values;
    std::vector<float> own_scores;  // the head's outputs, [rows, this rank's columns]
    Shared<float> scores[2];        // all columns; used in turns: one may be read while the next is written
    Shared<Best> best[2];           // [ranks, rows]: the best of each rank's columns
    int turn = 0;
    Inputs by_head;
    FeedForwardBuffers mlp;
    Ranks ranks;
    World world;
    SharedExperts experts;
    const int lane;
    std::unique_ptr<Engine> twin;  // computes the other half of a step's rows
    std::vector<int32_t> second_begins;
    int64_t expert_bytes = 0;      // bytes of experts that were read; for a measurement

    // first: the engine of which this one is the twin; they share the threads. Null: it is not a twin.
    Engine(const NxModel& m, int threads, int layers_given, Engine* first = nullptr)
        : own_pool(first ? nullptr : new Pool(threads)), pool(first ? first->pool : *own_pool), model(m),
          layers(m.layer, m.layer + layers_given), nextn(m.nextn, m.nextn + (layers_given - m.layers)),
          scratch(size_t(pool.threads())), ranks(m.ranks), world(m.world), lane(first != nullptr) {
        experts.set_arrays({}, lane);
        if (first) return;
        if (world) twin.reset(new Engine(m, threads, layers_given, this));
        if (ranks && ranks.given().memory) place_arrays(uintptr_t(ranks.given().memory), ranks.given().most_rows);
        if (world && !world.apart()) place_world_arrays(uintptr_t(world.given().memory));
    }

    // Sets the addresses of the arrays that ranks fill together, in the memory that they share. Returns the
    // bytes they take.
    int64_t place_arrays(uintptr_t memory, int64_t rows, int64_t at = MEETING_BYTES) {
        int64_t routed = 0, shared = 0, down = 0;
        for (const NxLayer& l : layers) {
            down = std::max(down, wide(l.down.n_out));
            if (l.mlp.router.data) routed = std::max(routed, l.mlp.top_k * Swiglu::width(l.mlp.down));
            if (l.mlp.shared_gate_up.data) shared = std::max(shared, Swiglu::width(l.mlp.shared_down));
        }
        at += added.set_address(memory + at, rows * wide(model.hidden));
        at += values.set_address(memory + at, rows * flat());
        at += mlp.routed.inner.set_address(memory + at, rows * routed);
        at += mlp.shared.inner.set_address(memory + at, rows * shared);
        at += projected[0].set_address(memory + at, rows * down);
        at += projected[1].set_address(memory + at, rows * wide(model.hidden));
        for (Shared<Best>& b : best) at += b.set_address(memory + at, rows * MOST_RANKS);
        for (Shared<float>& s : scores) at += s.set_address(memory + at, int64_t(SCORE_ROWS) * model.vocab);
        return twin ? twin->place_arrays(memory, rows, at) : at;
    }
    // The same for the arrays that all ranks of the world use.
    int64_t place_world_arrays(uintptr_t memory, int64_t at = MEETING_BYTES) {
        int64_t top_k = 0, inner = 0;
        for (const NxLayer& l : layers)
            if (l.mlp.own) top_k = l.mlp.top_k, inner = Swiglu::width(l.mlp.down);
        LaneArrays arrays;
        at = arrays.set_addresses(memory, at, world.given(), wide(model.hidden), top_k, inner);
        experts.set_arrays(arrays, lane);
        return twin ? twin->place_world_arrays(memory, at) : at;
    }

    int64_t flat() const { return wide(int64_t(model.all_heads) * model.value); }  // columns of a row of `values`

    template <class T> static T* room(std::vector<T>& v, int64_t n) {
        if (int64_t(v.size()) < n) v.resize(size_t(n));
        return v.data();
    }

    void lay_out(const NxBatch& b) {
        spans_of(b, spans);
        room(position, b.rows);
        for (const Span& s : spans)
            for (int r = 0; r < s.rows; ++r) position[s.first + r] = s.start + r;
        sort_heads(b.rows);
    }

    void sort_heads(int rows) {
        int32_t* begin = room(head_begin, model.heads + 1);
        int32_t* row = room(head_rows, int64_t(rows) * model.heads);
        for (int head = 0; head <= model.heads; ++head) begin[head] = head * rows;
        for (int head = 0; head < model.heads; ++head)
            for (int i = 0; i < rows; ++i) *row++ = i * model.heads + head;
    }

    // x += added (null: nothing), then calls norm(i, row) for each row of x.
    template <class Norm> void add_norm(int rows, const float* added, const Norm& norm) {
        const int64_t c = wide(model.hidden);
        each_row(pool, rows, [&](int i) {
            float* row = x.data() + i * c;
            if (added) add_to(row, added + i * c, model.hidden);
            norm(i, row);
        });
    }

    // Returns `in` times w, [rows, stride] f32: in `alone`, computed by this rank, or in `together`, of which
    // each rank computes some outputs. It takes the second way if that saves more time than the meeting takes;
    // every rank decides the same.
    float* project(const Rows& in, int rows, const NxWeight& w, int64_t stride, float* alone, Shared<float>& together) {
        const int64_t saved = ranks ? product_cost(w, rows) / ranks.size() * (ranks.size() - 1) : 0;
        const bool some = ranks && saved >= (ranks.given().sockets ? GATHER_WORTH : MEETING_WORTH);
        float* to = some ? together.room(rows * stride) : alone;
        float* own = to + (some ? ranks.begin(w.n_out, PANEL) : 0);
        product_all(pool, in, rows, some ? outputs_of(w, own - to, ranks.end(w.n_out, PANEL)) : w,
                    [&](int i, int n0, int n, const float* v) { put(own + i * stride + n0, v, n); });
        if (some) {
            ranks.gather(to, rows, stride, w.n_out, PANEL);
            ranks.meet();
        }
        return to;
    }

    // Attention and its output projection, of the normed rows in h16. Returns the addition to the residual
    // stream, [rows, wide(hidden)] f32.
    const float* attend(const NxLayer& l, int index, int rows) {
        const int64_t c = wide(model.hidden), flat = this->flat();
        uint16_t* all = values.room(rows * flat);
        const Cache cache{model.cache + index * model.layer_elements, model.width, model.page};
        uint16_t* own_values = all + int64_t(model.first_head) * model.value;
        if (model.kv_heads) mix_groups(l, cache, rows, own_values);
        else mix_latents(l, cache, rows, own_values);
        ranks.gather(all, rows, flat, int64_t(model.all_heads) * model.value, int64_t(model.heads) * model.value);
        ranks.meet();
        float* out = added.room(rows * c);
        const int64_t first = ranks.begin(model.hidden, PANEL);
        product_all(pool, {reinterpret_cast<uint32_t*>(all), flat / 2}, rows, l.out,
                    [&](int i, int n0, int n, const float* v) {
                        float* to = out + i * c + first + n0;
                        put(to, v, n);
                        if (l.out_bias) add_to(to, l.out_bias + first + n0, n);
                    });
        ranks.gather(out, rows, c, model.hidden, PANEL);
        ranks.meet();
        return out;
    }

    // Attention of the rows in h16. mixed [rows, flat]: this rank's heads. Defined in gqa.h and mla.h.
    void mix_groups(const NxLayer& l, const Cache& cache, int rows, uint16_t* mixed);
    void mix_latents(const NxLayer& l, const Cache& cache, int rows, uint16_t* vs);

    uint16_t* slot(const Cache& cache, int row) const {
        // Spans are sorted by their rows.
        size_t i = 0, step = spans.size();
        while (step > 1) {
            const size_t half = step / 2;
            if (spans[i + half].first <= row) i += half;
            step -= half;
        }
        return cache.entry(spans[i], spans[i].start + row - spans[i].first);
    }

    // One decoder layer. grown: added to x first, or null. Returns what has to be added to x next.
    const float* decoder_layer(int index, int rows, const float* grown) {
        begin_layer(index, rows, grown);
        if (layers[index].mlp.own) experts.compute(pool, world);
        return end_layer(index, rows);
    }

    // The layer up to h and h16, the rows that go into the feed-forward block. If experts are shared, the rows
    // are offered to other ranks. Without rows it does only that.
    void begin_layer(int index, int rows, const float* grown) {
        const NxLayer& l = layers[index];
        const int64_t c = wide(model.hidden);
        uint16_t* half = room(h16, rows * c);
        float* hs = room(h, rows * c);
        if (rows) {
            add_norm(rows, grown, [&](int i, const float* row) {
                norm_bf16(row, l.attention_norm, model.hidden, model.eps, half + i * c);
            });
            const float* attended = attend(l, index, rows);
            add_norm(rows, attended, [&](int i, const float* row) {
                norm_f32(row, l.mlp_norm, model.hidden, model.eps, hs + i * c);
                put_bf16(half + i * c, hs + i * c, model.hidden);
            });
        }
        if (l.mlp.own) experts.offer(pool, l.mlp, world, ranks, hs, half, rows, c, mlp.shared);
    }

    const float* end_layer(int index, int rows) {
        const NxFeedForward& f = layers[index].mlp;
        const int64_t c = wide(model.hidden), first = ranks.begin(model.hidden, PANEL);
        float* grown_by = added.room(rows * c);
        const int columns = int(ranks.end(model.hidden, PANEL) - first);
        if (f.own) experts.finish(pool, world, ranks, mlp.shared, grown_by + first, columns);
        else if (rows) feed_forward(pool, f, h.data(), h16.data(), rows, c, grown_by + first, mlp, ranks);
        if (rows) {
            ranks.gather(grown_by, rows, c, model.hidden, PANEL);
            ranks.meet();
        }
        if (f.router.data) {
            const Swiglu& routed = f.own ? experts.routed : mlp.routed;
            expert_bytes += int64_t(routed.to.used.size()) *
                            (f.gate_up.stride + f.down.stride + 4 * (f.gate_up.scale_stride + f.down.scale_stride));
        }
        return grown_by;
    }

    int64_t take_expert_bytes() {
        const int64_t found = expert_bytes;
        expert_bytes = 0;
        return found;
    }

    void put_rows(int rows, const float* grown, const float* norm, float* out) {
        const int64_t c = wide(model.hidden);
        float* hs = room(h, rows * c);
        add_norm(rows, grown, [&](int i, const float* row) {
            norm_f32(row, norm, model.hidden, model.eps, hs + i * c);
            memcpy(out + int64_t(i) * model.hidden, hs + i * c, size_t(model.hidden) * 4);
        });
    }

    // All layers of the target. out [rows, hidden] f32, normed.
    void forward(const NxBatch& b, float* out) {
        if (world && world.two()) return forward_in_two(b, out);
        begin(b);
        const float* grown = nullptr;
        for (int l = 0; l < model.layers; ++l) grown = decoder_layer(l, b.rows, grown);
        put_rows(b.rows, grown, model.norm, out);
    }

    void begin(const NxBatch& b) {
        lay_out(b);
        const int64_t c = wide(model.hidden);
        float* xs = room(x, b.rows * c);
        each_row(pool, b.rows, [&](int i) { embed(b.tokens[i], xs + i * c); });
    }

    // Computes two halves of the rows in turns: while one half's rows are on the way to other ranks, the other
    // half is computed. The second half may attend to what the first has written into the cache; the reverse is
    // not possible.
    void forward_in_two(const NxBatch& b, float* out) {
        Engine& second = *twin;
        const int rows = world.rows(0, world.group()), rest = b.rows - rows;
        int spans = 0;
        while (spans < b.spans && b.cu_rows[spans] < rows) ++spans;
        std::vector<int32_t>& begins = second_begins;
        begins.clear();
        for (int i = spans; i <= b.spans; ++i) begins.push_back(b.cu_rows[i] - rows);
        NxBatch of_second = b;
        of_second.rows = rest, of_second.spans = b.spans - spans;
        of_second.tokens += rows, of_second.starts += spans, of_second.page_at += spans;
        of_second.cu_rows = begins.data();
        if (b.cu_paths) of_second.cu_paths += rows;
        NxBatch of_first = b;
        of_first.rows = rows, of_first.spans = spans;
        begin(of_first);
        second.begin(of_second);
        const float *grown = nullptr, *its = nullptr;
        for (int l = 0; l < model.layers; ++l) {
            begin_layer(l, rows, grown);
            if (l) its = second.end_layer(l - 1, rest);
            second.begin_layer(l, rest, its);
            if (layers[l].mlp.own) {
                experts.compute(pool, world);
                second.experts.compute(pool, world);
            }
            grown = end_layer(l, rows);
        }
        its = second.end_layer(model.layers - 1, rest);
        put_rows(rows, grown, model.norm, out);
        second.put_rows(rest, its, model.norm, out + int64_t(rows) * model.hidden);
        expert_bytes += second.take_expert_bytes();
    }

    void embed(int32_t token, float* to) const {
        const uint16_t* row = model.embedding + int64_t(token) * model.hidden;
        for (int j = 0; j < model.hidden; ++j) to[j] = bf16_float(row[j]);
        for (int64_t j = model.hidden; j < wide(model.hidden); ++j) to[j] = 0.f;
    }

    // Runs NextN module k. hidden [.., hidden] f32; rows: indices in `hidden` of the states at each position
    // (null: in order). b.tokens: the tokens after those positions. out [rows, hidden] f32, normed; may be
    // `hidden`.
    void draft(const NxBatch& b, const float* hidden, const int32_t* rows, int k, float* out) {
        lay_out(b);
        const NxModel& m = model;
        const NxNextN& own = nextn[k];
        const int64_t c = wide(m.hidden), both = wide(2 * int64_t(m.hidden));
        float* xs = room(x, b.rows * c);
        float* hs = room(h, b.rows * c);
        uint16_t* in = room(h16, b.rows * both);
        each_row(pool, b.rows, [&](int i) {
            alignas(64) uint16_t half[MOST_HIDDEN];
            float* row = hs + i * c;
            if (m.masks_first && position[i] == 0) std::fill(row, row + c, 0.f);
            else embed(b.tokens[i], row);
            norm_bf16(row, own.enorm, m.hidden, m.eps, half);
            memcpy(in + i * both, half, size_t(m.hidden) * 2);
            for (int64_t j = m.hidden; j < c; ++j) row[j] = 0.f;
            memcpy(row, hidden + int64_t(rows ? rows[i] : i) * m.hidden, size_t(m.hidden) * 4);
            norm_bf16(row, own.hnorm, m.hidden, m.eps, half);
            memcpy(in + i * both + m.hidden, half, size_t(m.hidden) * 2);
        });
        const Rows taken{reinterpret_cast<uint32_t*>(in), both / 2};
        const float* made = project(taken, b.rows, own.eh_proj, c, xs, projected[1]);
        if (made != xs) memcpy(xs, made, size_t(b.rows * c) * 4);
        for (int i = 0; i < b.rows; ++i)
            for (int64_t j = m.hidden; j < c; ++j) xs[i * c + j] = 0.f;
        const float* grown = decoder_layer(m.layers + k, b.rows, nullptr);
        put_rows(b.rows, grown, own.norm, out);
    }
};

}  // namespace
