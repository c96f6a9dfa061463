// Rows times a panel in vector registers. Every output is one chain of additions over the k of a cell, and one
// chain over the cells, from first to last, for any number of rows and threads. Row invariance needs nothing
// else.
//
// A few rows are multiplied directly: the panel's numbers stay in the registers in which they are made. For
// more rows, a chunk of k is widened into a scratch buffer in the first-level cache, and all rows are
// multiplied by it there, six by 64 outputs at a time.
#pragma once
#include "cells.h"
#include "coded_bytes.h"
#include "vector_rows.h"

namespace {

#if defined(NX_FEW_ROWS)
constexpr int CHAIN_ROWS = 2;       // less code, for the sanitizers
#else
constexpr int CHAIN_ROWS = 6;       // 6 x 4 accumulators, 4 weights and spares of 32 registers
#endif
constexpr int ROWS_TOGETHER = 96;   // rows per chunk while it is in the cache: their sums are in the second level
#if defined(__AVX512F__)
constexpr int ABREAST = 4;          // vectors of outputs that rows are multiplied by at a time
constexpr int CHUNK_WORDS = 64;     // words of k, unless a cell of few-bit codes has more: it is not cut
#else
constexpr int ABREAST = 1;
constexpr int CHUNK_WORDS = 256;
#endif
constexpr int MOST_CHUNK_WORDS = std::max(CHUNK_WORDS, 128);
#if defined(NX_FEW_ROWS)
constexpr int DIRECT_ROWS = CHAIN_ROWS;
#elif defined(__AVX512F__)
constexpr int DIRECT_ROWS = 8;  // rows that need no chunk
#elif defined(__AVX2__)
constexpr int DIRECT_ROWS = 6;
#else
constexpr int DIRECT_ROWS = CHAIN_ROWS;
#endif
#if defined(__AVX2__) && !defined(__AVX512F__)
constexpr int DIRECT_GROUPS = 4;  // groups of rows in turn, if it costs little to make the numbers for each
#define NX_APART [[gnu::noinline]]  // so that a loop has all sixteen registers
#else
constexpr int DIRECT_GROUPS = 1;
#define NX_APART
#endif

struct ByPairs {  // dot products of bf16 pairs
    using Word = uint32_t;
    static constexpr bool pairs = true;
    static const Word* row(const VectorRows& x, int i) { return x.words(i); }
    static vi broadcast(Word x) { return splat_word(x); }
    static void step(vf& acc, vi x, vi w) { acc = dot2(acc, x, w); }
};
struct BySingles {  // f32 multiply-adds
    using Word = float;
    static constexpr bool pairs = false;
    static const Word* row(const VectorRows& x, int i) { return x.wide(i); }
    static vf broadcast(Word x) { return splat(x); }
    static void step(vf& acc, vf x, vi w) { add_product(acc, x, as_float(w)); }
};

// Whether this library multiplies the weight by dot products of bf16 pairs: the level's default, or
// NxWeight::way.
#if defined(__AVX512BF16__)
inline bool by_pairs(const NxWeight& w) { return w.kind != F32 && w.way != 3; }
#else
inline bool by_pairs(const NxWeight&) { return false; }
#endif

template <int FORM> inline vf begun(vf start, float sum) { return FORM >= STARTED ? mul(splat(sum), start) : zero(); }
// Adds a complete sum of a cell to *total, or stores it (PLAIN).
template <int FORM> inline void complete(vf sum, vf scale, vf min, float of_row, float* total) {
    vf all = sum;
    if constexpr (FORM != PLAIN) all = fma(scale, sum, load(total));
    if constexpr (FORM == MINS) all = fma(min, splat(of_row), all);
    store(total, all);
}

constexpr int MOST_AT_ONCE = std::max(DIRECT_ROWS, CHAIN_ROWS);
template <class By> struct SomeRows {
    const typename By::Word* x[MOST_AT_ONCE];
    const float* sums[MOST_AT_ONCE];
};

// N vectors of outputs from v on, for M rows, over all of k. totals [M][64]. once: the weight is non-temporal, and
// its panel is read from front to back only once.
template <class By, class Line, int FORM, int M, int N>
NX_APART void multiply_directly(const Cells& cells, const SomeRows<By>& rows, int v, bool once, float* totals) {
    [[maybe_unused]] constexpr int ahead = 4096;  // bytes; the hardware prefetcher stops at the ends of pages
    constexpr int count = By::pairs ? Line::inputs / 2 : Line::inputs;
    const int step = cells.V * Line::bytes;
    const typename By::Word* x[M];
    NX_UNROLL for (int m = 0; m < M; ++m) x[m] = rows.x[m];
    for (int c = 0, k = 0; c < cells.count; ++c) {
        const Cell cell = cells.at<Line>(c);
        CellScale s[N];
        if constexpr (FORM != PLAIN) NX_UNROLL for (int n = 0; n < N; ++n) s[n] = cells.scale<FORM>(cell, v + n);
        vf acc[M][N];
        NX_UNROLL for (int m = 0; m < M; ++m)
            NX_UNROLL for (int n = 0; n < N; ++n)
                acc[m][n] = begun<FORM>(s[n].start, FORM >= STARTED ? rows.sums[m][c] : 0.f);
        const uint8_t* w = cell.codes + v * Line::bytes;
        for (const int end = k + cells.inputs_of(c) / Line::inputs * count; k < end; k += count, w += Line::lines * step) {
#if defined(__x86_64__)
            if (once) {
                NX_UNROLL for (int l = 0; l < Line::lines; ++l)
                    for (int b = 0; b < N * Line::bytes; b += 64) __builtin_prefetch(w + l * step + b + ahead, 0, 0);
            } else {
                NX_UNROLL for (int l = 0; l < Line::lines; ++l)
                    for (int b = 0; b < N * Line::bytes; b += 64) __builtin_prefetch(w + l * step + b + ahead);
            }
#endif
            each_number(NumbersOf<Line, By::pairs>{}, [&](auto number) NX_INLINE {
                vi wv[N];
                NX_UNROLL for (int n = 0; n < N; ++n)
                    wv[n] = Line::template number<By::pairs, number>(w + n * Line::bytes, step);
                NX_UNROLL for (int m = 0; m < M; ++m) {
                    const auto xm = By::broadcast(x[m][k + number]);
                    NX_UNROLL for (int n = 0; n < N; ++n) By::step(acc[m][n], xm, wv[n]);
                }
            });
        }
        NX_UNROLL for (int m = 0; m < M; ++m)
            NX_UNROLL for (int n = 0; n < N; ++n)
                complete<FORM>(acc[m][n], s[n].scale, s[n].min, FORM == MINS ? rows.sums[m][c] : 0.f,
                               totals + m * PANEL + (v + n) * 16);
    }
}

// Some cells of a panel as numbers, or some k of one cell.
struct Chunk {
    static constexpr int CELLS = 8;
    alignas(64) uint8_t words[MOST_CHUNK_WORDS * PANEL * 4];  // [vectors / ABREAST][k or pair of k][outputs]
    alignas(64) float scales[CELLS * PANEL];             // [cell][outputs], also starts and mins
    alignas(64) float starts[CELLS * PANEL];
    alignas(64) float mins[CELLS * PANEL];
    int V, cells, steps;  // steps: words of each cell
    bool first, last;     // whether the cells begin and end in this chunk

    int wide() const { return std::min(V, ABREAST) * 64; }  // bytes from a word to the next
    static int at(int v) { return v / ABREAST * (MOST_CHUNK_WORDS * ABREAST * 64) + v % ABREAST * 64; }
};

// Inputs [from, to) of cell c -> words of the chunk, from word `at` on.
template <class Line, bool Pairs> void widen(const Cells& cells, int c, int from, int to, Chunk& chunk, int at) {
    constexpr int count = Pairs ? Line::inputs / 2 : Line::inputs;
    [[maybe_unused]] constexpr int ahead = 4096;
    const int step = cells.V * Line::bytes, wide = chunk.wide();
    const uint8_t* w = cells.at<Line>(c).codes + int64_t(from / Line::inputs) * Line::lines * step;
    uint8_t* put = chunk.words + int64_t(at) * wide;
    for (int k = from; k < to; k += Line::inputs, w += Line::lines * step, put += count * wide)
        for (int v = 0; v < cells.V; ++v) {
            const uint8_t* own = w + v * Line::bytes;
#if defined(__x86_64__)
            NX_UNROLL for (int l = 0; l < Line::lines; ++l)
                if (Line::bytes == 64 || v % 2 == 0) __builtin_prefetch(own + l * step + ahead);
#endif
            each_number(NumbersOf<Line, Pairs>{}, [&](auto number) NX_INLINE {
                store_words(put + Chunk::at(v) + number * wide, Line::template number<Pairs, number>(own, step));
            });
        }
}

// Multiplies the chunk by M rows, for N vectors of outputs from v on. rows: words from x[m] on and sums from
// sums[m] on. totals, parts: [rows][64] of these rows; parts are the sums of a cell that is not complete.
template <class By, int FORM, int M, int N>
NX_APART void multiply_vectors(const Chunk& chunk, const SomeRows<By>& rows, int v, float* totals, float* parts) {
    const uint8_t* w = chunk.words + Chunk::at(v);
    const int wide = chunk.wide();
    const typename By::Word* x[M];
    NX_UNROLL for (int m = 0; m < M; ++m) x[m] = rows.x[m];
    for (int c = 0, k = 0; c < chunk.cells; ++c) {
        const int at = c * PANEL + v * 16;
        vf acc[M][N];
        NX_UNROLL for (int m = 0; m < M; ++m)
            NX_UNROLL for (int n = 0; n < N; ++n)
                acc[m][n] = !chunk.first ? load(parts + m * PANEL + (v + n) * 16)
                            : begun<FORM>(FORM >= STARTED ? load(chunk.starts + at + n * 16) : zero(),
                                          FORM >= STARTED ? rows.sums[m][c] : 0.f);
        const auto step = [&](int i) NX_INLINE {
            vi wv[N];
            NX_UNROLL for (int n = 0; n < N; ++n) wv[n] = words(w + n * 64);
            w += wide;
            NX_UNROLL for (int m = 0; m < M; ++m) {
                const auto xm = By::broadcast(x[m][i]);
                NX_UNROLL for (int n = 0; n < N; ++n) By::step(acc[m][n], xm, wv[n]);
            }
        };
        const int end = k + chunk.steps;
        for (; k + 4 <= end; k += 4) step(k), step(k + 1), step(k + 2), step(k + 3);
        for (; k < end; ++k) step(k);
        NX_UNROLL for (int m = 0; m < M; ++m)
            NX_UNROLL for (int n = 0; n < N; ++n) {
                const int to = m * PANEL + (v + n) * 16;
                if (!chunk.last) store(parts + to, acc[m][n]);
                else complete<FORM>(acc[m][n], FORM != PLAIN ? load(chunk.scales + at + n * 16) : zero(),
                                    FORM == MINS ? load(chunk.mins + at + n * 16) : zero(),
                                    FORM == MINS ? rows.sums[m][c] : 0.f, totals + to);
            }
    }
}

// Calls does(v, n) for V vectors, n at a time: as many as there are registers for, beside the sums of M rows
// and what the numbers of a Line take.
template <int M, class Line, class Does> inline void each_vectors(int V, const Does& does) {
#if defined(__AVX512F__)
    constexpr int most = M <= CHAIN_ROWS ? 4 : 2;
#elif defined(__AVX2__)
    // Few-bit codes of many inputs are unpacked once for all vectors that are done together.
    constexpr bool long_lines = Line::inputs >= 16;
    constexpr int most = M == 1 && (Line::widens_cheaply || long_lines) ? 4 : M <= 2 || (M == 3 && long_lines) ? 2 : 1;
#else
    constexpr int most = 1;
#endif
    int v = 0;
    for (; v + most <= V; v += most) does(v, std::integral_constant<int, most>{});
    if constexpr (most > 1) for (; v < V; ++v) does(v, std::integral_constant<int, 1>{});
}
// Calls does(M) with the number of rows as a constant; 8 for 7 rows.
template <class Does> inline void with_rows(int rows, const Does& does) {
    switch (rows) {
        case 1: return does(std::integral_constant<int, 1>{});
        case 2: return does(std::integral_constant<int, 2>{});
        case 3: return does(std::integral_constant<int, 3>{});
        case 4: return does(std::integral_constant<int, 4>{});
        case 5: return does(std::integral_constant<int, 5>{});
        case 6: return does(std::integral_constant<int, 6>{});
        default: return does(std::integral_constant<int, 8>{});
    }
}

template <class By> SomeRows<By> rows_from(const VectorRows& x, int first, int m, int k, int c, bool sums) {
    SomeRows<By> rows;
    for (int j = 0; j < MOST_AT_ONCE; ++j) {  // fills up with copies of the last row
        const int i = first + (j < m ? j : m - 1);
        rows.x[j] = By::row(x, i) + k;
        rows.sums[j] = sums ? x.sums(i) + c : nullptr;
    }
    return rows;
}

// Multiplies m rows from `first` on by the chunk, which begins at word k and cell c.
template <class By, int FORM>
void multiply_chunk(const Chunk& chunk, const VectorRows& x, int first, int m, int k, int c, float* totals,
                    float* parts) {
    const int all = (m + CHAIN_ROWS - 1) / CHAIN_ROWS;
    for (int v = 0; v < chunk.V; v += ABREAST)
        for (int i = 0, groups = all, some; i < m; i += some, --groups) {
            some = (m - i + groups - 1) / groups;
            const SomeRows<By> rows = rows_from<By>(x, first + i, some, k, c, FORM >= STARTED);
            const auto multiply = [&](auto count, int from, auto n) {
                multiply_vectors<By, FORM, count, n>(chunk, rows, from, totals + i * PANEL, parts + i * PANEL);
            };
            with_rows(some, [&](auto count) {
                if constexpr (count <= CHAIN_ROWS) {
                    if (v + ABREAST <= chunk.V) return multiply(count, v, std::integral_constant<int, ABREAST>{});
                    for (int own = v; own < chunk.V; ++own) multiply(count, own, std::integral_constant<int, 1>{});
                }
            });
        }
}

// totals [m][64] <- m <= ROWS_TOGETHER rows from `first` on, times a panel. totals has room for ROWS_TOGETHER
// rows.
template <class By, class Line, int FORM>
void vector_product(const VectorRows& x, int first, int m, const NxWeight& w, const Panel& panel, float* totals) {
    // Lines with many numbers are long code, which takes long to compile.
    constexpr int direct = Line::inputs < 16 ? DIRECT_ROWS : std::min(DIRECT_ROWS, 3);
    const Cells cells(w, panel);
    if (FORM != PLAIN) for (int i = 0; i < std::max(m, DIRECT_ROWS) * PANEL; i += 16) store(totals + i, zero());
    if (m <= direct * (Line::widens_cheaply ? DIRECT_GROUPS : 1)) {
        for (int i = 0, groups = (m + direct - 1) / direct, some; i < m; i += some, --groups) {
            some = (m - i + groups - 1) / groups;
            const SomeRows<By> rows = rows_from<By>(x, first + i, some, 0, 0, FORM >= STARTED);
            with_rows(some, [&](auto count) {
                if constexpr (count <= direct) each_vectors<count, Line>(cells.V, [&](int v, auto n) {
                    const bool once = w.non_temporal && m <= direct && n == cells.V;
                    multiply_directly<By, Line, FORM, count, n>(cells, rows, v, once, totals + i * PANEL);
                });
            });
        }
        return;
    }
    static thread_local Chunk chunk;
    alignas(64) float parts[ROWS_TOGETHER * PANEL];
    constexpr int per_word = By::pairs ? 2 : 1;
    const int most = FORM < STARTED ? CHUNK_WORDS * per_word : std::max(CHUNK_WORDS * per_word, cells.inputs);
    chunk.V = cells.V;
    for (int c = 0, to; c < cells.count; c = to) {
        const int inputs = cells.inputs_of(c);
        to = c + 1;
        while (to < cells.count && to - c < Chunk::CELLS && cells.inputs_of(to) == inputs &&
               (to + 1 - c) * inputs <= most)
            ++to;
        if (FORM != PLAIN)
            for (int i = c; i < to; ++i) {
                const Cell cell = cells.at<Line>(i);
                for (int v = 0; v < cells.V; ++v) {
                    const CellScale found = cells.scale<FORM>(cell, v);
                    const int at = (i - c) * PANEL + v * 16;
                    store(chunk.scales + at, found.scale);
                    if (FORM >= STARTED) store(chunk.starts + at, found.start);
                    if (FORM == MINS) store(chunk.mins + at, found.min);
                }
            }
        for (int from = 0, upto; from < inputs; from = upto) {
            upto = from + most < inputs ? from + most : inputs;
            chunk.cells = to - c;
            chunk.steps = (upto - from) / per_word;
            chunk.first = from == 0, chunk.last = upto == inputs;
            for (int i = c; i < to; ++i) widen<Line, By::pairs>(cells, i, from, upto, chunk, (i - c) * chunk.steps);
            multiply_chunk<By, FORM>(chunk, x, first, m, (c * cells.inputs + from) / per_word, c, totals, parts);
        }
    }
}

template <class By>
inline void vector_product(const VectorRows& x, int first, int m, const NxWeight& w, const Panel& panel, float* totals) {
    const auto go = [&](auto product) { product(x, first, m, w, panel, totals); };
    switch (w.kind) {
        case F32:
            if constexpr (!By::pairs) return go(vector_product<By, F32Line, PLAIN>);
            return;
        case BF16: return go(vector_product<By, Bf16Line, PLAIN>);
        case E4M3: return go(vector_product<By, E4m3Line, SCALED>);
        case INT8: return go(vector_product<By, Int8Line, SCALED>);
        case Q8_0: return go(vector_product<By, CodeLine<8>, SCALED>);
        case Q4_K: return go(vector_product<By, CodeLine<4>, MINS>);
        case Q5_K: return go(vector_product<By, CodeLine<5>, MINS>);
        case Q6_K: return go(vector_product<By, CodeLine<6>, STARTED>);
        case Q4_1: return go(vector_product<By, CodeLine<4>, MINS>);
        case Q5_0: return go(vector_product<By, CodeLine<5>, STARTED>);
        case Q5_1: return go(vector_product<By, CodeLine<5>, MINS>);
        default: return go(vector_product<By, CodeLine<4>, STARTED>);
    }
}

// Rows [from, to) of x times one panel; calls done(i, first output, number of outputs, 64 floats) for each row.
template <class Done>
inline void chains_by_panel(const VectorRows& x, int from, int to, const NxWeight& w, const Panel& panel, const Done& done) {
#if defined(NX_BYTES)
    if (by_bytes(w)) return bytes_by_panel(x.bytes(), from, to, w, panel, done);
#endif
    alignas(64) float totals[ROWS_TOGETHER * PANEL];
    for (int i = from; i < to; i += ROWS_TOGETHER) {
        const int m = to - i < ROWS_TOGETHER ? to - i : ROWS_TOGETHER;
#if defined(__AVX512BF16__)
        if (by_pairs(w)) vector_product<ByPairs>(x, i, m, w, panel, totals);
        else
#endif
        vector_product<BySingles>(x, i, m, w, panel, totals);
        for (int j = 0; j < m; ++j) done(i + j, panel.first, panel.vectors * 16, totals + j * PANEL);
    }
}

}  // namespace
