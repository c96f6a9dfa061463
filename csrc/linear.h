// Matrix products with packed weights: y[t, n] = sum over k of x[t, k] * w[n, k].
//
// Rows are first put into the form that products read (Inputs), then multiplied panel by panel. The level
// decides how: chains.h in vector registers, tiles.h in AMX tiles. Both give a row the same bits with any
// number of rows beside it.
#pragma once
#include "chains.h"
#include "panels.h"
#include "pool.h"
#if defined(__AMX_BF16__)
#include "tiles.h"
#endif

namespace {

// How a product is cut into tasks. rows: number of rows that are one task with a panel. by_rows: consecutive
// tasks have the same rows and different panels; else the same panel and different rows.
struct Pieces {
    int rows;
    bool by_rows;
};

#if defined(__AMX_BF16__)
// Number of rows whose product costs about as much as one read of the weight from memory.
inline int pass_rows(const NxWeight& w) { return in_tiles(w) ? 64 : CHAIN_ROWS; }

template <class Done>
inline void rows_by_panel(const Inputs& x, int from, int to, const NxWeight& w, const Panel& panel, const Done& done) {
    if (in_tiles(w)) tiles_by_panel(x, from, to, w, panel, done);
    else chains_by_panel(x.vectors(), from, to, w, panel, done);
}

// The tiles of a piece's rows stay in the second-level cache while all panels are read.
inline Pieces pieces_of(const NxWeight& w, int rows, int threads) {
    constexpr int64_t room = 1 << 20;
    const int wide = panels(w);
    int piece = MOST_ROWS;
    while (piece > 128 && int64_t(piece) * w.n_in * 2 > room) piece /= 2;
    while (piece > 64 && wide * ((rows + piece - 1) / piece) < 4 * threads) piece /= 2;
    return {piece, true};
}
#else
struct TileUse {  // there is no tile configuration to release
    TileUse() {}
};

inline int pass_rows(const NxWeight&) { return CHAIN_ROWS; }

// Rows for weights of one shape, in runs: the rows of a run are multiplied by the same weights.
class Inputs {
  public:
    // Run r is rows [begin[r], begin[r + 1]) of x.
    void take(Pool& pool, const Rows& x, const int32_t* begin, int runs, const NxWeight& w) {
        vectors_.take(pool, x, begin[runs], w, by_pairs(w));
    }
    const VectorRows& vectors() const { return vectors_; }

  private:
    VectorRows vectors_;
};

// Rows [from, to) of x times one panel; calls done(i, first output, number of outputs, 64 floats) for each row.
template <class Done>
inline void rows_by_panel(const Inputs& x, int from, int to, const NxWeight& w, const Panel& panel, const Done& done) {
    chains_by_panel(x.vectors(), from, to, w, panel, done);
}

// A panel stays in the cache from one piece to the next.
inline Pieces pieces_of(const NxWeight& w, int rows, int threads) {
    const int pieces = panels(w) >= 8 * threads ? 1 + (rows - 1) / 1024 : (rows + 95) / 96;
    return {((rows + pieces - 1) / pieces + CHAIN_ROWS - 1) / CHAIN_ROWS * CHAIN_ROWS, false};
}
#endif

// Cost of a product of `rows` rows, for Pool::for_each: as if the weight were read once for every pass.
inline int64_t product_cost(const NxWeight& w, int64_t rows) {
    const int64_t pass = pass_rows(w);
    return w.n_out * output_bytes(w) * ((rows + pass - 1) / pass);
}

// All rows times all panels, in tasks of a panel and a block of rows. Calls done as rows_by_panel does.
template <class Done>
inline void product_all(Pool& pool, const Rows& x, int rows, const NxWeight& w, const Done& done) {
    if (rows <= 0) return;
    static thread_local Inputs inputs;
    const Inputs& taken = inputs;  // the calling thread's, read by all threads
    const int32_t run[2] = {0, rows};
    inputs.take(pool, x, run, 1, w);
    const Pieces piece = pieces_of(w, rows, pool.threads());
    const int wide = panels(w), pieces = (rows + piece.rows - 1) / piece.rows;
    pool.for_each(wide * pieces, [&](int task, int) {
        const int p = piece.by_rows ? task % wide : task / pieces;
        const int from = (piece.by_rows ? task / wide : task % pieces) * piece.rows;
        const int to = from + piece.rows < rows ? from + piece.rows : rows;
        rows_by_panel(taken, from, to, w, panel_of(w, p), done);
    }, product_cost(w, rows));
}

inline void put(float* y, const float* values, int n) { memcpy(y, values, size_t(n) * 4); }
inline void put_bf16(uint16_t* y, const float* values, int n) {
    for (int i = 0; i < n; i += 16) store_bf16(y + i, load(values + i));
}

}  // namespace
