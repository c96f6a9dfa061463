// A step of the model: rows through all decoder layers, or through a NextN module. One call, no allocation
// once the buffers have grown to the largest batch.
#pragma once
#include <memory>

#include "choose.h"
#include "gqa.h"
#include "linear.h"

namespace {

// What fits into the buffers on the stack, MOST_RANK besides; nextn.models.native refuses models beyond.
constexpr int MOST_HIDDEN = 16384, MOST_LATENT = 8192;
constexpr int SCORE_ROWS = 64;  // whose logits ranks gather at once
// Bytes that a rank reads in the time of a gathering and a meeting, in shared memory and over sockets.
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
    std::vector<int32_t> head_begin, head_rows;  // vectors sorted by head: where one begins; number of row and head
    std::vector<float> x, h, a, q;
    Shared<float> added;  // what the residual stream x is to grow by, before it is read again
    Shared<float> projected[2];  // outputs of `down` and of a module's eh_proj, where ranks compute some each
    std::vector<Line> parts;
    std::vector<uint16_t> h16, q_latent, q_nope, query, mixed;
    Shared<uint16_t> values;
    std::vector<float> own_scores;  // of the head, [rows, this rank's columns]
    Shared<float> scores[2];        // all columns; by turns: one may be read while the next is written
    Shared<Best> best[2];           // [ranks, rows]: what each found among its columns
    int turn = 0;
    Inputs by_head;
    FeedForwardBuffers mlp;
    Ranks ranks;
    World world;
    SharedExperts experts;
    const int lane;
    std::unique_ptr<Engine> twin;  // for the other half of a step's rows
    std::vector<int32_t> second_begins;
    int64_t expert_bytes = 0;      // that were read; a measurement's, not a step's

    // first: whose twin it is, with the same threads.
    Engine(const NxModel& m, int threads, int layers_given, Engine* first = nullptr)
        : own_pool(first ? nullptr : new Pool(threads)), pool(first ? first->pool : *own_pool), model(m),
          layers(m.layer, m.layer + layers_given), nextn(m.nextn, m.nextn + (layers_given - m.layers)),
          scratch(size_t(pool.threads())), ranks(m.ranks), world(m.world), lane(first != nullptr) {
        experts.lay({}, lane);
        if (first) return;
        if (world) twin.reset(new Engine(m, threads, layers_given, this));
        if (ranks && ranks.given().memory) lay(uintptr_t(ranks.given().memory), ranks.given().most_rows);
        if (world && !world.apart()) lay_world(uintptr_t(world.given().memory));
    }

    // Where the arrays that ranks fill together lie in their memory. Returns its bytes.
    int64_t lay(uintptr_t memory, int64_t rows, int64_t at = MEETING_BYTES) {
        int64_t routed = 0, shared = 0, down = 0;
        for (const NxLayer& l : layers) {
            down = std::max(down, wide(l.down.n_out));
            if (l.mlp.router.data) routed = std::max(routed, l.mlp.top_k * Swiglu::width(l.mlp.down));
            if (l.mlp.shared_gate_up.data) shared = std::max(shared, Swiglu::width(l.mlp.shared_down));
        }
        at += added.lay(memory + at, rows * wide(model.hidden));
        at += values.lay(memory + at, rows * flat());
        at += mlp.routed.inner.lay(memory + at, rows * routed);
        at += mlp.shared.inner.lay(memory + at, rows * shared);
        at += projected[0].lay(memory + at, rows * down);
        at += projected[1].lay(memory + at, rows * wide(model.hidden));
        for (Shared<Best>& b : best) at += b.lay(memory + at, rows * MOST_RANKS);
        for (Shared<float>& s : scores) at += s.lay(memory + at, int64_t(SCORE_ROWS) * model.vocab);
        return twin ? twin->lay(memory, rows, at) : at;
    }
    // The same of those that all ranks of the world use.
    int64_t lay_world(uintptr_t memory, int64_t at = MEETING_BYTES) {
        int64_t top_k = 0, inner = 0;
        for (const NxLayer& l : layers)
            if (l.mlp.own) top_k = l.mlp.top_k, inner = Swiglu::width(l.mlp.down);
        LaneArrays arrays;
        at = arrays.lay(memory, at, world.given(), wide(model.hidden), top_k, inner);
        experts.lay(arrays, lane);
        return twin ? twin->lay_world(memory, at) : at;
    }

    int64_t flat() const { return wide(int64_t(model.all_heads) * model.value); }  // values of a row

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

    // x += added (null: nothing), then norm(i, row) of each of its rows.
    template <class Norm> void add_norm(int rows, const float* added, const Norm& norm) {
        const int64_t c = wide(model.hidden);
        each_row(pool, rows, [&](int i) {
            float* row = x.data() + i * c;
            if (added) add_to(row, added + i * c, model.hidden);
            norm(i, row);
        });
    }

    // Outputs of rows of x times w, [rows, stride] f32: in `alone`, or in `together`, each rank having computed some
    // of them. The latter where more time is saved than the meeting takes; every rank decides alike.
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

    // Of rows in h16, normed: what the residual stream grows by, [rows, wide(hidden)] f32.
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

    // Grouped-query attention of rows in h16. mixed [rows, flat]: of this rank's heads.
    void mix_groups(const NxLayer& l, const Cache& cache, int rows, uint16_t* mixed) {
        const NxModel& m = model;
        const NxHeads of = grouped_heads(m);
        const int n = m.nope + m.rope, queries = m.heads * n, keys = m.kv_heads * n, all_values = m.kv_heads * m.value;
        const int total = queries + keys + all_values;
        const int64_t down = wide(total);
        float* as = room(a, rows * down);
        const auto product = [&](const NxWeight& w, int at, int count) {
            product_all(pool, {reinterpret_cast<uint32_t*>(h16.data()), wide(m.hidden) / 2}, rows, w,
                        [&](int i, int n0, int some, const float* v) {
                            put(as + i * down + at + n0, v, some < count - n0 ? some : count - n0);
                        });
        };
        product(l.down, 0, l.key_up.data ? queries : total);
        if (l.key_up.data) {
            product(l.key_up, queries, keys);
            product(l.value_up, queries + keys, all_values);
        }
        uint16_t* qy = room(query, int64_t(rows) * m.heads * of.key);
        each_row(pool, rows, [&](int i) {
            float* row = as + i * down;
            if (l.bias) add_to(row, l.bias, total);
            const int64_t at = int64_t(position[i]) * (m.rope / 2);
            const auto turn = [&](const float* head, const float* norm, float scale, uint16_t* to) {
                put_head(m, head, norm, m.cosine + at, m.sine + at, scale, to);
            };
            for (int head = 0; head < m.heads; ++head, row += n) {
                const int64_t group = head / of.heads;
                turn(row, l.q_norm, m.scale, qy + ((group * rows + i) * of.heads + head % of.heads) * of.key);
            }
            uint16_t* entry = slot(cache, i);
            for (int head = 0; head < m.kv_heads; ++head, row += n)
                turn(row, l.kv_norm, 1.f, entry + int64_t(head) * of.stride + of.key_at);
            for (int head = 0; head < m.kv_heads; ++head, row += m.value)
                put_value(row, m.value, entry + int64_t(head) * of.stride);
        });
        attention(pool, spans.data(), int(spans.size()), rows, cache, of, qy, scratch, parts, {mixed, flat()});
    }

    // Absorbed latent attention likewise.
    void mix_latents(const NxLayer& l, const Cache& cache, int rows, uint16_t* vs) {
        const NxModel& m = model;
        const int64_t c = wide(m.hidden), latent = m.rank + m.rope, flat = this->flat();
        const int64_t down = l.down.n_out;
        const Rows normed{reinterpret_cast<uint32_t*>(h16.data()), c / 2};
        float* as = room(a, rows * wide(down));
        if (l.q_norm) as = project(normed, rows, l.down, wide(down), as, projected[0]);
        else  // each rank has its heads' queries, and computes all of the latent
            product_all(pool, normed, rows, l.down,
                        [&](int i, int n0, int n, const float* v) { put(as + i * wide(down) + n0, v, n); });

        // Queries: their latent through its norm, if they have one, and what is cached of this row.
        const int64_t q_latent_wide = wide(m.q_in);
        uint16_t* ql = l.q_norm ? room(q_latent, rows * q_latent_wide) : nullptr;
        each_row(pool, rows, [&](int i) {
            float* row = as + i * wide(down);
            if (ql) {
                alignas(64) float copy[MOST_LATENT];
                copy_padded(row, m.q_in, copy);
                norm_bf16(copy, l.q_norm, m.q_in, m.latent_eps, ql + i * q_latent_wide);
            }
            alignas(64) float key[MOST_RANK];
            copy_padded(row + m.q_in, m.rank, key);
            uint16_t* entry = slot(cache, i);
            alignas(64) uint16_t normed[MOST_RANK];
            norm_bf16(key, l.kv_norm, m.rank, m.latent_eps, normed);
            memcpy(entry, normed, size_t(m.rank) * 2);
            const int64_t at = int64_t(position[i]) * (m.rope / 2);
            rotate(row + m.q_in + m.rank, m.cosine + at, m.sine + at, m.rope, 1.f, entry + m.rank);
            for (int64_t j = latent; j < m.width; ++j) entry[j] = 0;
        });
        const float* qs = as;
        int64_t q_stride = wide(down);
        if (ql) {
            q_stride = wide(l.q_up.n_out);
            float* to = room(q, rows * q_stride);
            product_all(pool, {reinterpret_cast<uint32_t*>(ql), q_latent_wide / 2}, rows, l.q_up,
                        [&](int i, int n0, int n, const float* v) { put(to + i * q_stride + n0, v, n); });
            qs = to;
        }

        // Absorb: each head's query meets the latent through its own half of kv_b_proj.
        const int64_t nope = wide(m.nope), vectors = int64_t(rows) * m.heads;
        uint16_t* qn = room(q_nope, vectors * nope);
        uint16_t* qy = room(query, vectors * m.width);
        each_row(pool, rows, [&](int i) {
            const int64_t at = int64_t(position[i]) * (m.rope / 2);
            for (int head = 0; head < m.heads; ++head) {
                const float* from = qs + i * q_stride + int64_t(head) * (m.nope + m.rope);
                uint16_t* to = qn + (int64_t(head) * rows + i) * nope;
                for (int j = 0; j < m.nope; ++j) to[j] = float_bf16(from[j]);
                if (m.nope & 1) to[m.nope] = 0;
                uint16_t* whole = qy + (int64_t(i) * m.heads + head) * m.width;
                rotate(from + m.nope, m.cosine + at, m.sine + at, m.rope, m.scale, whole + m.rank);
                for (int64_t j = latent; j < m.width; ++j) whole[j] = 0;
            }
        });
        const vf scale = splat(m.scale);
        const int key_panels = panels(l.key_up);
        by_head.take(pool, {reinterpret_cast<uint32_t*>(qn), nope / 2}, head_begin.data(), m.heads, l.key_up);
        pool.for_each(m.heads * key_panels, [&](int t, int) {
            const int head = t / key_panels, p = t % key_panels;
            rows_by_panel(by_head, head * rows, (head + 1) * rows, l.key_up, panel_of(l.key_up, p, head),
                          [&](int i, int n0, int n, const float* v) {
                              uint16_t* to = qy + int64_t(head_rows[i]) * m.width + n0;
                              alignas(64) uint16_t half[PANEL];
                              for (int j = 0; j < n; j += 16) store_bf16(half + j, mul(load(v + j), scale));
                              memcpy(to, half, size_t(n < m.rank - n0 ? n : m.rank - n0) * 2);
                          });
        }, m.heads * product_cost(l.key_up, rows));

        const int rank = int(wide(m.rank));
        uint16_t* mx = room(mixed, vectors * rank);
        const NxHeads of{1, m.heads, 0, 1, m.width, rank, 0, m.width, rank};
        attention(pool, spans.data(), int(spans.size()), rows, cache, of, qy, scratch, parts,
                  {mx, int64_t(m.heads) * rank});

        const int value_panels = panels(l.value_up);
        by_head.take(pool, {reinterpret_cast<uint32_t*>(mx), rank / 2, head_rows.data()}, head_begin.data(), m.heads,
                     l.value_up);
        pool.for_each(m.heads * value_panels, [&](int t, int) {
            const int head = t / value_panels, p = t % value_panels;
            rows_by_panel(by_head, head * rows, (head + 1) * rows, l.value_up, panel_of(l.value_up, p, head),
                          [&](int i, int n0, int n, const float* v) {
                              alignas(64) uint16_t half[PANEL];
                              put_bf16(half, v, n);
                              memcpy(vs + (i - head * rows) * flat + int64_t(head) * m.value + n0, half,
                                     size_t(n < m.value - n0 ? n : m.value - n0) * 2);
                          });
        }, m.heads * product_cost(l.value_up, rows));
    }

    uint16_t* slot(const Cache& cache, int row) const {
        // Spans come in the order of their rows.
        size_t i = 0, step = spans.size();
        while (step > 1) {
            const size_t half = step / 2;
            if (spans[i + half].first <= row) i += half;
            step -= half;
        }
        return cache.entry(spans[i], spans[i].start + row - spans[i].first);
    }

    // grown: what x grows by first, or null. Returns what it is to grow by next.
    const float* decoder_layer(int index, int rows, const float* grown) {
        begin_layer(index, rows, grown);
        if (layers[index].mlp.own) experts.compute(pool, world);
        return end_layer(index, rows);
    }

    // Up to the rows of h and h16, which go into the feed-forward block; where its experts are shared, they are
    // offered. Without rows, there is nothing else to do.
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

    // out [rows, hidden] f32, normed.
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

    // Two halves of the rows by turns: what one sends to other ranks is under way while the other one is computed. The
    // second half may see what the first one has written into the cache, never the other way round.
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

    // NextN module k. hidden [.., hidden] f32, rows: of it, the state at each position (null: in order); tokens:
    // those after them. out [rows, hidden] f32, normed; may be `hidden`.
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
