// The choice of a token: argmax(filter(logits / T) + G(seed, stream, index, .)), as defined by
// nextn.sampling.sampler. Probabilities are computed only if a filter needs them. The choice is -1 if a logit
// is NaN or +infinity, or if all are -infinity. Without filters a row can be cut into parts: the best choice of
// its parts is its own.
//
// G: Gumbel noise from Philox4x32-10 (Salmon et al., SC'11), keyed by the seed, with counter (token id / 4,
// index, stream). It is the noise of nextn.sampling.gumbel.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "simd.h"

extern "C" {
struct NxSampling {
    uint64_t seed;
    uint32_t stream, index;
    float temperature;  // below 1e-5: greedy
    float top_p, min_p;
    int32_t top_k;      // 0 or less: all
    int32_t rows;       // rows chosen with these; the index increases by 1 for each
};
}

namespace {

inline void philox(uint32_t c0, uint32_t c1, uint32_t c2, uint64_t seed, uint32_t out[4]) {
    uint32_t c3 = 0, k0 = uint32_t(seed), k1 = uint32_t(seed >> 32);
    for (int round = 0; round < 10; ++round) {
        const uint64_t p0 = uint64_t(c0) * 0xD2511F53u, p1 = uint64_t(c2) * 0xCD9E8D57u;
        const uint32_t n0 = uint32_t(p1 >> 32) ^ c1 ^ k0, n2 = uint32_t(p0 >> 32) ^ c3 ^ k1;
        c0 = n0; c1 = uint32_t(p1); c2 = n2; c3 = uint32_t(p0);
        k0 += 0x9E3779B9u; k1 += 0xBB67AE85u;
    }
    out[0] = c0; out[1] = c1; out[2] = c2; out[3] = c3;
}

inline float gumbel(uint32_t word) { return float(-std::log(-std::log((double(word) + 0.5) * 0x1p-32))); }

// Tells which random words can win. A token that is d below the best logit needs noise above `lead` + d; lead
// is the best sum so far minus the best logit. Noise increases with the word, so one comparison rejects most
// tokens, and only the others need two logarithms.
struct Bar {
    static constexpr int STEPS = 24;  // the noise is below 23
    uint32_t least[STEPS + 1];        // for d in [i, i + 1)
    void raise(float lead) {
        for (int i = 0; i <= STEPS; ++i) {
            // Slightly too low, which costs an unnecessary logarithm now and then.
            const double u = std::exp(-std::exp(-(double(lead) + i - 1e-3))) * 0x1p32 - 2.;
            least[i] = i == STEPS && lead + i > 23.f ? 0xffffffffu : u <= 0. ? 0u : uint32_t(u);
        }
    }
    bool can_win(float below, uint32_t word) const {
        return below < float(STEPS) ? word >= least[int(below)] : word >= least[STEPS];
    }
};

// The largest of z. Sound: z can have any values, and the result is NaN if one is NaN or +infinity.
template <bool Sound = false>
inline float largest_of(const float* z, int n) {
    constexpr int step = 64;
    const vf least = splat(std::numeric_limits<float>::lowest());
    vf m[4] = {splat(-INFINITY), splat(-INFINITY), splat(-INFINITY), splat(-INFINITY)};
    vf odd[4] = {zero(), zero(), zero(), zero()};
    int i = 0;
    for (; i + step <= n; i += step)
        NX_UNROLL for (int j = 0; j < 4; ++j) {
            const vf x = load(z + i + 16 * j);
            m[j] = max(x, m[j]);                                       // if x is NaN: m[j]
            if (Sound) odd[j] = fma(max(least, x), zero(), odd[j]);  // if x is NaN: NaN, also times 0
        }
    float best = largest(max(max(m[0], m[1]), max(m[2], m[3])));
    float flaw = Sound ? sum(add(add(odd[0], odd[1]), add(odd[2], odd[3]))) : 0.f;
    for (; i < n; ++i) {
        best = z[i] > best ? z[i] : best;
        if (Sound && !(z[i] <= std::numeric_limits<float>::max())) flaw = NAN;
    }
    return Sound ? best + flaw : best;
}

// The choice among a row's columns, or among those that a rank has.
struct Best {
    enum : int32_t { NONE = -1, NOT_FINITE = -2 };  // all logits are -infinity; one is NaN or +infinity
    float value, second;                        // of the choice, and of the second best
    int32_t id;                                 // the chosen token, NONE or NOT_FINITE
    int32_t token() const { return id < 0 ? -1 : id; }
    // By how much the choice is ahead of the second best, in logits; 0 if there is no choice.
    float confidence(const NxSampling& s) const;
};

// The first index of the largest value, or NONE or NOT_FINITE.
inline int argmax(const float* z, int n) {
    const float best = largest_of<true>(z, n);
    if (!std::isfinite(best)) return best == -INFINITY ? Best::NONE : Best::NOT_FINITE;
    int i = 0;
    for (constexpr int step = 256; i + step < n && largest_of(z + i, step) < best;) i += step;
    while (z[i] != best) ++i;
    return i;
}

inline bool is_greedy(const NxSampling& s) { return s.temperature < 1e-5f; }

// Whether a choice among n tokens can exclude some because of the others. Then it needs all their logits.
inline bool filters(const NxSampling& s, int n) {
    return !is_greedy(s) && ((s.top_k > 0 && s.top_k < n) || !(s.top_p >= 1.f) || !(s.min_p <= 0.f));
}

inline float Best::confidence(const NxSampling& s) const {
    return id < 0 ? 0.f : is_greedy(s) ? value - second : (value - second) * s.temperature;
}

// Overwrites with -infinity what top-k excludes, then what top-p excludes among the rest, then what min-p
// excludes.
inline void filter(float* z, int n, const NxSampling& s, int best, std::vector<int32_t>& order) {
    if (!filters(s, n)) return;
    const int k = s.top_k > 0 && s.top_k < n ? s.top_k : n;
    order.resize(size_t(n));
    for (int i = 0; i < n; ++i) order[i] = i;
    const auto before = [z](int32_t a, int32_t b) { return z[a] != z[b] ? z[a] > z[b] : a < b; };
    // Sorted only as far as needed: the top-k, or a part that grows until it has top-p's probability.
    if (k < n) std::nth_element(order.begin(), order.begin() + k, order.end(), before);
    const float top = z[best];
    double total = 0.;
    for (int i = 0; i < k; ++i) total += std::exp(double(z[order[i]] - top));
    int kept = 0, sorted = 0;
    double mass = 0.;
    while (kept < k) {
        if (kept == sorted) {
            const int upto = std::min(k, sorted ? 4 * sorted : 256);
            if (upto < k) std::nth_element(order.begin() + sorted, order.begin() + upto, order.begin() + k, before);
            std::sort(order.begin() + sorted, order.begin() + upto, before);
            sorted = upto;
        }
        const double p = std::exp(double(z[order[kept]] - top)) / total;
        if (kept && (mass >= double(s.top_p) || p < double(s.min_p) / total)) break;
        mass += p;
        ++kept;
    }
    for (int i = kept; i < n; ++i) z[order[i]] = -INFINITY;
}

inline float best_but(const float* z, int n, int chosen) {
    return std::max(largest_of(z, chosen), largest_of(z + chosen + 1, n - chosen - 1));
}

// The best of a row's tokens. z [n]: logits of tokens first, first + 1, ...; first is a multiple of 4. z is
// overwritten if the row is sampled. Filters need all tokens of the row in z. Second: whether Best::second is
// wanted.
template <bool Second = false>
inline Best best_of(float* z, int n, int first, const NxSampling& s, std::vector<int32_t>& order) {
    const int greedy = argmax(z, n);
    if (greedy < 0) return {0.f, 0.f, greedy};
    if (is_greedy(s)) return {z[greedy], Second ? best_but(z, n, greedy) : -INFINITY, first + greedy};
    for (int i = 0; i < n; ++i) z[i] /= s.temperature;
    if (!std::isfinite(z[greedy])) return {0.f, 0.f, z[greedy] < 0.f ? Best::NONE : Best::NOT_FINITE};
    filter(z, n, s, greedy, order);
    int best = greedy;
    uint32_t words[4];
    philox(uint32_t((first + greedy) / 4), s.index, s.stream, s.seed, words);
    const float top = z[greedy];
    float value = top + gumbel(words[greedy % 4]), second = -INFINITY;
    Bar bar;
    bar.raise((Second ? second : value) - top);
    for (int i = 0; i < n; i += 4) {
        const int end = i + 4 < n ? i + 4 : n;
        bool open = false;
        for (int j = i; j < end; ++j) open |= z[j] != -INFINITY;
        if (!open) continue;
        philox(uint32_t((first + i) / 4), s.index, s.stream, s.seed, words);
        for (int j = i; j < end; ++j) {
            if (z[j] == -INFINITY || !bar.can_win(top - z[j], words[j - i])) continue;
            const float v = z[j] + gumbel(words[j - i]);
            if (v > value || (v == value && j < best)) {
                if (Second) second = value;
                value = v;
                best = j;
                bar.raise((Second ? second : value) - top);
            } else if (Second && v > second && j != best) {
                second = v;
                bar.raise(second - top);
            }
        }
    }
    return {value, second, first + best};
}

// The best of a row, from the best of each of its parts: one[0], one[stride], ...
inline Best best_of(const Best* one, int64_t stride, int count) {
    Best all{0.f, -INFINITY, Best::NONE};
    for (int i = 0; i < count; ++i, one += stride) {
        if (one->id == Best::NOT_FINITE) return *one;
        if (one->id < 0) continue;
        const bool wins = all.id < 0 || one->value > all.value || (one->value == all.value && one->id < all.id);
        const Best &best = wins ? *one : all, &other = wins ? all : *one;
        const float second = other.id < 0 ? best.second : std::max(best.second, other.value);
        all = {best.value, second, best.id};
    }
    return all;
}

// Returns the token that is chosen, or -1. Overwrites the logits if the row is sampled. confidence <-
// Best::confidence; null: not wanted.
inline int choose(float* z, int n, const NxSampling& s, std::vector<int32_t>& order, float* confidence = nullptr) {
    const Best best = confidence ? best_of<true>(z, n, 0, s, order) : best_of(z, n, 0, s, order);
    if (confidence) *confidence = best.confidence(s);
    return best.token();
}

}  // namespace
