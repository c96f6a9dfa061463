// The library's interface: plain C, called through ctypes with data pointers (nextn.ops.cpu.interface). One
// thread at a time uses an engine. These functions do not check their arguments: Python has done that.
#include <utility>

#include "choose.h"
#include "coded_pack.h"
#include "machine.h"
#include "pack.h"
#include "page_sockets.h"
#include "peak.h"
#include "read.h"
#include "step.h"

#if defined(__linux__)
#include <sys/mman.h>
#endif

#if defined(_WIN32)
#define NX_API extern "C" __declspec(dllexport)
#else
#define NX_API extern "C" __attribute__((visibility("default")))
#endif

// The best level that this machine can run, see machine_level. Every process has to call it before it uses the
// library of level 4.
NX_API int nx_machine_level() { return machine_level(); }

NX_API int nx_interface() { return 28; }

NX_API void nx_advise(void* p, int64_t bytes) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    const uintptr_t page = uintptr_t(1) << 21, from = (uintptr_t(p) + page - 1) & ~(page - 1);
    const uintptr_t to = (uintptr_t(p) + uintptr_t(bytes)) & ~(page - 1);
    if (to > from) madvise(reinterpret_cast<void*>(from), to - from, MADV_HUGEPAGE);
#endif
}

NX_API void nx_pack(const void* src, int rows, int columns, int64_t ld, int transposed, void* dst, int n_out, int n_in,
                    int kind, int first, int interleave) {
    if (kind == F32)
        pack_rows(static_cast<const uint32_t*>(src), rows, columns, ld, transposed, static_cast<uint32_t*>(dst), n_out,
                  n_in, kind, first, interleave);
    else if (kind == BF16)
        pack_rows(static_cast<const uint16_t*>(src), rows, columns, ld, transposed, static_cast<uint16_t*>(dst), n_out,
                  n_in, kind, first, interleave);
    else
        pack_rows(static_cast<const uint8_t*>(src), rows, columns, ld, transposed, static_cast<uint8_t*>(dst), n_out,
                  n_in, kind, first, interleave);
}

// The same for few-bit weights: rows of blocks of a GGUF file, and codes of INT4 and INT4Z (scales as in
// coded.h).
NX_API void nx_pack_blocks(const uint8_t* src, int rows, uint8_t* dst, int n_out, int n_in, int kind, int first,
                           int interleave) {
    pack_blocks(src, rows, dst, n_out, n_in, kind, first, interleave);
}
NX_API void nx_pack_codes(const uint8_t* codes, const uint16_t* scales, const uint8_t* zeros, int rows, uint8_t* dst,
                          int n_out, int n_in, int kind, int block, int first, int interleave) {
    pack_codes(codes, scales, zeros, rows, dst, n_out, n_in, kind, block, first, interleave);
}
// The ways (NxWeight::way) in which this library can multiply weights of a kind: bit w is set for way w.
NX_API int nx_ways(int kind) {
    if (kind == F32) return 0;
    int ways = is_coded(kind) && by_bytes_here() && kind >= Q4_0 ? 1 << BY_BYTES : 0;
#if defined(__AVX512BF16__)
    ways |= 1 << 2 | 1 << 3;
#endif
#if defined(__AMX_BF16__)
    if (!is_coded(kind)) ways |= 1 << 1;
#endif
    return ways;
}
// Bytes of an output in its panel.
NX_API int64_t nx_output_bytes(int kind, int n_in, int block) {
    NxWeight w{};
    w.kind = kind, w.n_in = n_in, w.block = block;
    return output_bytes(w);
}

// Exceptions must not pass through C. Null: there is no memory, or the system gives no more threads.
template <class T, class... Args> static void* made(Args&&... args) {
    try {
        return new T(std::forward<Args>(args)...);
    } catch (...) {
        return nullptr;
    }
}

NX_API void* nx_pool_new(int threads) { return made<Pool>(threads); }
NX_API void nx_pool_free(void* pool) { delete static_cast<Pool*>(pool); }

NX_API uint64_t nx_read(void* pool, const void* p, int64_t bytes) {
    return read_all(*static_cast<Pool*>(pool), static_cast<const uint8_t*>(p), bytes);
}

// See csrc/pages.h. sums [32]: those of earlier pages before the call, and with these pages after it.
NX_API void nx_read_pages(const uint8_t* pool, int layers, int64_t layer, int64_t run, const int64_t* pages, int n,
                          uint8_t* buffer, uint64_t* sums) {
    read_runs({layers, layer, run, pages, n}, pool, buffer, sums);
}
NX_API void nx_write_pages(uint8_t* pool, int layers, int64_t layer, int64_t run, const int64_t* pages, int n,
                           const uint8_t* buffer, uint64_t* sums) {
    const Runs runs{layers, layer, run, pages, n};
    write_rows(runs, buffer, 0, runs.bytes(), pool, sums);
}
#if !defined(_WIN32)
// See csrc/page_sockets.h. arriving [2]: see Arriving.
NX_API void nx_send_pages(const uint8_t* pool, int layers, int64_t layer, int64_t run, const int64_t* pages, int n,
                          int socket, uint8_t* buffer, int64_t filled, int64_t* left) {
    send_runs(socket, {layers, layer, run, pages, n}, pool, buffer, filled, left);
}
NX_API int64_t nx_receive_pages(uint8_t* pool, int layers, int64_t layer, int64_t run, const int64_t* pages, int n,
                                int socket, int64_t tail, uint8_t* buffer, int64_t size, int64_t* arriving,
                                uint64_t* sums) {
    Arriving a{arriving[0], arriving[1]};
    const int64_t came = receive_runs(socket, {layers, layer, run, pages, n}, tail, buffer, size, a, pool, sums);
    arriving[0] = a.placed, arriving[1] = a.held;
    return came;
}
NX_API void nx_place_pages(uint8_t* pool, int layers, int64_t layer, int64_t run, const int64_t* pages, int n,
                           uint8_t* buffer, int64_t came, int64_t* arriving, uint64_t* sums) {
    Arriving a{arriving[0], arriving[1]};
    place_held({layers, layer, run, pages, n}, buffer, came, a, pool, sums);
    arriving[0] = a.placed, arriving[1] = a.held;
}
#endif

// See csrc/peak.h. Returns the number of operations; 0 for arithmetic that this library does not have.
NX_API int64_t nx_peak(void* pool, int which, int tasks) {
    const TileUse use;
    return arithmetic(*static_cast<Pool*>(pool), which, tasks);
}

// One product: y [rows, n_out] f32 <- x [rows, n_in] (bf16, or f32 for an f32 weight) times the weight.
NX_API void nx_linear(void* pool, const void* x, int rows, const NxWeight* w, float* y) {
    const TileUse use;
    const int64_t words = w->kind == F32 ? w->n_in : w->n_in / 2;
    product_all(*static_cast<Pool*>(pool), {static_cast<const uint32_t*>(x), words}, rows, *w,
                [&](int i, int n0, int n, const float* v) { put(y + int64_t(i) * w->n_out + n0, v, n); });
}

// q [groups, rows, heads, key] bf16, scaled; out [rows, groups, heads, columns] bf16.
NX_API void nx_attention(void* pool, const NxBatch* b, uint16_t* cache, int width, int page, const NxHeads* heads,
                         const uint16_t* q, uint16_t* out) {
    std::vector<Span> spans;
    spans_of(*b, spans);
    Pool& threads = *static_cast<Pool*>(pool);
    // Kept between calls: growing the buffers again would cost more than a small batch.
    static thread_local std::vector<Scratch> scratch;
    static thread_local std::vector<Line> parts;
    if (scratch.size() < size_t(threads.threads())) scratch.resize(size_t(threads.threads()));
    const TileUse use;
    const int64_t stride = int64_t(heads->groups) * heads->heads * heads->columns;
    attention(threads, spans.data(), int(spans.size()), b->rows, {cache, width, page}, *heads, q, scratch, parts,
              {out, stride});
}

// y [rows, stride] f32 <- feed-forward of h [rows, stride] f32 and its bf16 copy. ids, weights <- the router's;
// may be null.
NX_API void nx_feed_forward(void* pool, const NxFeedForward* f, const float* h, const uint16_t* h16, int rows,
                            int64_t stride, float* y, int32_t* ids, float* weights) {
    const TileUse use;
    FeedForwardBuffers b;
    feed_forward(*static_cast<Pool*>(pool), *f, h, h16, rows, stride, y, b);
    if (ids) std::copy(b.ids.begin(), b.ids.end(), ids);
    if (weights) std::copy(b.weights.begin(), b.weights.end(), weights);
}

// The steps of routed experts, for callers that send rows elsewhere between them. csrc/moe.h describes the
// arrays.
NX_API void nx_route(void* pool, const NxFeedForward* f, const float* h, int rows, int64_t stride, int32_t* ids,
                     float* weights) {
    const TileUse use;
    std::vector<float> logits;
    route(*static_cast<Pool*>(pool), *f, h, rows, stride, logits, ids, weights);
}
NX_API void nx_experts(void* pool, const NxFeedForward* f, const uint16_t* h16, const int32_t* ids, int rows,
                       int64_t stride, float* results) {
    const TileUse use;
    experts(*static_cast<Pool*>(pool), *f, h16, ids, rows, stride, results);
}
// shared: results of the shared expert, [rows, stride] f32, or null.
NX_API void nx_combine(const float* results, const float* weights, int top_k, const float* shared, int rows,
                       int64_t stride, float* y) {
    combine(results, stride, weights, top_k, shared, stride, rows, int(stride), y, stride);
}

// Rows [rows, n] bf16 and their form in messages: see csrc/fp8_rows.h.
NX_API int64_t nx_fp8_row_bytes(int64_t n) { return fp8_row_bytes(n); }
NX_API void nx_fp8_encode(const uint16_t* x, int rows, int64_t n, uint8_t* to) {
    for (int i = 0; i < rows; ++i) fp8_encode(x + i * n, n, to + i * fp8_row_bytes(n));
}
NX_API void nx_fp8_decode(const uint8_t* from, int rows, int64_t n, uint16_t* y) {
    for (int i = 0; i < rows; ++i) fp8_decode(from + i * fp8_row_bytes(n), n, y + i * n);
}

NX_API void nx_norm(const float* x, const float* weight, int rows, int n, int64_t stride, float eps, float* y) {
    for (int i = 0; i < rows; ++i) norm_f32(x + i * stride, weight, n, eps, y + i * stride);
}

NX_API void* nx_engine_new(const NxModel* model, int threads, int layers) {
    return made<Stepper>(*model, threads, layers);
}
NX_API void nx_engine_free(void* engine) { delete static_cast<Stepper*>(engine); }
// Bytes of the experts whose weights were read since the last call. Each is counted once in each layer's pass.
NX_API int64_t nx_engine_expert_bytes(void* engine) { return static_cast<Stepper*>(engine)->take_expert_bytes(); }
// The functions below return 1 if another rank has ended, else 0.
template <class Call> static int checked(const Call& call) {
    try {
        call();
        return 0;
    } catch (const RankGone&) {
        return 1;
    }
}
NX_API int nx_forward(void* engine, const NxBatch* batch, float* out) {
    const TileUse use;
    return checked([&] { static_cast<Stepper*>(engine)->forward(*batch, out); });
}
NX_API int nx_draft(void* engine, const NxBatch* batch, const float* hidden, int module, float* out) {
    const TileUse use;
    return checked([&] { static_cast<Stepper*>(engine)->draft(*batch, hidden, nullptr, module, out); });
}
NX_API int nx_logits(void* engine, const float* hidden, int rows, int vocab, float* out) {
    const TileUse use;
    return checked([&] { static_cast<Stepper*>(engine)->logits(hidden, nullptr, rows, vocab, out); });
}
NX_API int nx_draft_logits(void* engine, const float* hidden, int rows, int vocab, float* out) {
    const TileUse use;
    return checked([&] { static_cast<Stepper*>(engine)->draft_logits(hidden, nullptr, rows, vocab, out); });
}
// out [whole, vocab] <- the logits of the first `whole` rows. tokens <- the choices of the others, by draws as
// in nx_choose.
NX_API int nx_choices(void* engine, const float* hidden, int rows, int vocab, int whole, float* out,
                      const NxSampling* sampling, int32_t* tokens) {
    return checked([&] {
        static_cast<Stepper*>(engine)->choices(hidden, rows, vocab, whole, out, sampling, tokens);
    });
}
// Runs a NextN module over the batch, and makes chains of guesses after it.
NX_API int nx_chains(void* engine, const NxBatch* batch, const float* hidden, int module, const NxChains* chains) {
    return checked([&] { static_cast<Stepper*>(engine)->chains(*batch, hidden, module, *chains); });
}
// A step in one call. requests: [spans]; table: the pages of all spans.
NX_API int nx_step(void* engine, const NxStep* step, const NxRequest* requests, const int32_t* table) {
    return checked([&] { static_cast<Stepper*>(engine)->step(*step, requests, table); });
}
// Bytes of the memory that the ranks of an engine for this model share.
NX_API int64_t nx_shared_bytes(const NxModel* model, int layers, int rows) {
    NxModel alone = *model;
    alone.ranks = nullptr;
    return Stepper(alone, 1, layers).place_arrays(0, rows);
}
// The same for the memory that all ranks of a world share.
NX_API int64_t nx_world_bytes(const NxModel* model, int layers) {
    NxModel alone = *model;
    alone.ranks = nullptr;
    return Stepper(alone, 1, layers).place_world_arrays(0);
}
// Called before every forward pass of ranks that share experts: see World::step.
NX_API int nx_world_step(NxWorld* world, int first, int rest, int two) {
    return checked([&] { World(world).step(first, rest, two != 0); });
}
// Gathers array [rows, stride bytes] of ranks that have sockets: see Mesh::gather.
NX_API int nx_gather(NxRanks* ranks, uint8_t* array, int64_t rows, int64_t stride, const int64_t* bounds) {
    return checked([&] { Ranks(ranks).gather_bytes(array, rows, stride, bounds); });
}
// Sends bytes from each of these ranks to each other one: see Ranks::swap.
NX_API int nx_swap(NxRanks* ranks, const uint8_t* out, const int64_t* out_at, uint8_t* in, const int64_t* in_at) {
    return checked([&] { Ranks(ranks).swap(out, out_at, in, in_at); });
}
// Waits for all other ranks: see NxMeeting.
NX_API int nx_meet(void* meeting, int size, int spins) {
    return checked([&] { meet(*static_cast<NxMeeting*>(meeting), size, spins); });
}
// Ends all waiting at this meeting, now and later.
NX_API void nx_break(void* meeting) {
    NxMeeting& m = *static_cast<NxMeeting*>(meeting);
    m.broken.store(1);
    wake_all(m.epoch);
}

// tokens <- the choices, one for each row of logits [.., vocab]. Rows that are sampled are overwritten.
// confidence <- Best::confidence of each; null: not wanted.
NX_API void nx_choose(float* logits, int runs, int vocab, const NxSampling* sampling, int32_t* tokens, float* confidence) {
    std::vector<int32_t> order;
    for (int i = 0; i < runs; ++i) {
        NxSampling s = sampling[i];
        for (int j = 0; j < sampling[i].rows; ++j, ++s.index, logits += vocab)
            *tokens++ = choose(logits, vocab, s, order, confidence ? confidence++ : nullptr);
    }
}
