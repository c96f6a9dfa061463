// AMX tiles in plain C++, for machines without them: included with `-include` before the kernels at level amx.
// The sums of every element have one order, as in the CPU's tiles, but a different one, so bits differ from the
// CPU's.
#pragma once
#include <immintrin.h>

#include <cstdint>
#include <cstring>

struct EmulatedTile {
    int rows, bytes;  // bytes of a row
    alignas(64) uint8_t data[16][64];
};
inline thread_local EmulatedTile emulated[8];

inline void emulated_config(const void* config) {
    const uint8_t* from = static_cast<const uint8_t*>(config);
    for (int t = 0; t < 8; ++t) emulated[t] = {from[48 + t], from[16 + 2 * t], {}};
}

inline void emulated_load(int t, const void* from, int64_t stride) {
    for (int r = 0; r < emulated[t].rows; ++r)
        memcpy(emulated[t].data[r], static_cast<const uint8_t*>(from) + r * stride, size_t(emulated[t].bytes));
}

inline void emulated_store(int t, void* to, int64_t stride) {
    for (int r = 0; r < emulated[t].rows; ++r)
        memcpy(static_cast<uint8_t*>(to) + r * stride, emulated[t].data[r], size_t(emulated[t].bytes));
}

// Tile c (f32) += tile a times tile b (both pairs of bf16).
inline void emulated_product(int c, int a, int b) {
    const int rows = emulated[c].rows, pairs = emulated[a].bytes / 4;
    float wide[16][2][16];  // tile b as f32
    for (int k = 0; k < pairs; ++k) {
        uint32_t words[16];
        memcpy(words, emulated[b].data[k], sizeof words);
        for (int n = 0; n < 16; ++n) {
            const uint32_t first = words[n] << 16, second = words[n] & 0xffff0000u;
            memcpy(&wide[k][0][n], &first, 4);
            memcpy(&wide[k][1][n], &second, 4);
        }
    }
    for (int r = 0; r < rows; ++r) {
        float sums[16];
        memcpy(sums, emulated[c].data[r], sizeof sums);
        for (int k = 0; k < 2 * pairs; ++k) {
            uint16_t half;
            memcpy(&half, emulated[a].data[r] + 2 * k, 2);
            const uint32_t bits = uint32_t(half) << 16;
            float x;
            memcpy(&x, &bits, 4);
            for (int n = 0; n < 16; ++n) sums[n] += x * wide[k / 2][k % 2][n];
        }
        memcpy(emulated[c].data[r], sums, size_t(emulated[c].bytes));
    }
}

#undef _tile_loadconfig
#undef _tile_release
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbf16ps
#define _tile_loadconfig(config) emulated_config(config)
#define _tile_release() static_cast<void>(0)
#define _tile_zero(t) memset(emulated[t].data, 0, sizeof emulated[t].data)
#define _tile_loadd(t, from, stride) emulated_load(t, from, stride)
#define _tile_stored(t, to, stride) emulated_store(t, to, stride)
#define _tile_dpbf16ps(c, a, b) emulated_product(c, a, b)
