// Copies KV pages between a pool and a buffer, and sums them in the same pass, for a checksum. Each row counts
// three times as much as the one after it, so that rows in another order have another sum
// (nextn/disaggregation/checksum.py).
//
// A page has a run of bytes in each layer of the pool. The buffer has, layer by layer, the runs of the pages in
// order.
#pragma once
#include <cstdint>
#include <cstring>

#if defined(__AVX512F__) || defined(__AVX2__)
#include <immintrin.h>
#endif

namespace {

constexpr int SUM_LANES = 32;                   // 64 bits each
constexpr int64_t SUM_ROW = 8 * SUM_LANES;      // bytes; a run is a number of whole rows

// Copies a run. Each of its rows is added to three times the lanes. PAST: writes past the cache, into memory that
// is not read soon.
template <bool PAST> void copy_run(const uint8_t* from, uint8_t* to, int64_t bytes, uint64_t* sums) {
#if defined(__AVX512F__)
    __m512i s[4];
    for (int i = 0; i < 4; ++i) s[i] = _mm512_loadu_si512(sums + 8 * i);
    for (int64_t at = 0; at < bytes; at += SUM_ROW)
        for (int i = 0; i < 4; ++i) {
            const __m512i v = _mm512_loadu_si512(from + at + 64 * i);
            s[i] = _mm512_add_epi64(_mm512_add_epi64(s[i], s[i]), _mm512_add_epi64(s[i], v));
            if (PAST) _mm512_stream_si512(reinterpret_cast<__m512i*>(to + at + 64 * i), v);
            else _mm512_storeu_si512(to + at + 64 * i, v);
        }
    for (int i = 0; i < 4; ++i) _mm512_storeu_si512(sums + 8 * i, s[i]);
#elif defined(__AVX2__)
    __m256i s[8];
    for (int i = 0; i < 8; ++i) s[i] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(sums + 4 * i));
    for (int64_t at = 0; at < bytes; at += SUM_ROW)
        for (int i = 0; i < 8; ++i) {
            const __m256i v = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + at + 32 * i));
            s[i] = _mm256_add_epi64(_mm256_add_epi64(s[i], s[i]), _mm256_add_epi64(s[i], v));
            if (PAST) _mm256_stream_si256(reinterpret_cast<__m256i*>(to + at + 32 * i), v);
            else _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + at + 32 * i), v);
        }
    for (int i = 0; i < 8; ++i) _mm256_storeu_si256(reinterpret_cast<__m256i*>(sums + 4 * i), s[i]);
#else
    for (int64_t at = 0; at < bytes; at += SUM_ROW) {
        uint64_t row[SUM_LANES];
        memcpy(row, from + at, SUM_ROW);
        for (int i = 0; i < SUM_LANES; ++i) sums[i] = 3 * sums[i] + row[i];
        memcpy(to + at, row, SUM_ROW);
    }
#endif
}

// The pages of a pool [layers, any number, run] bytes, `layer` bytes in each layer, and of a buffer [layers, n,
// run].
struct Runs {
    int layers;
    int64_t layer, run;
    const int64_t* pages;
    int n;

    int64_t bytes() const { return int64_t(layers) * n * run; }
    // The offset in the pool of byte `at` of a buffer.
    int64_t place(int64_t at) const {
        const int64_t i = at / run;
        return i / n * layer + pages[i % n] * run + at % run;
    }
};

inline void read_runs(const Runs& r, const uint8_t* pool, uint8_t* buffer, uint64_t* sums) {
    for (int64_t at = 0; at < r.bytes(); at += r.run) copy_run<false>(pool + r.place(at), buffer + at, r.run, sums);
}

// Writes bytes [at, at + bytes) of a buffer, whole rows, into the pool.
inline void write_rows(const Runs& r, const uint8_t* data, int64_t at, int64_t bytes, uint8_t* pool, uint64_t* sums) {
    const bool aligned = uintptr_t(pool) % 64 == 0 && r.layer % 64 == 0;
    for (const int64_t end = at + bytes; at < end;) {
        const int64_t rest = r.run - at % r.run, n = rest < end - at ? rest : end - at;
        if (aligned) copy_run<true>(data, pool + r.place(at), n, sums);
        else copy_run<false>(data, pool + r.place(at), n, sums);
        data += n, at += n;
    }
#if defined(__AVX512F__) || defined(__AVX2__)
    _mm_sfence();  // before other threads learn that the pages are there
#endif
}

}  // namespace
