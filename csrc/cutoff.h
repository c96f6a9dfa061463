// The rule that ends a chain of guesses, see nextn/cutoff.py.
#pragma once

extern "C" {
// A guess whose confidence (choose.h) is in bin k is accepted with probability `rate`[k]. `edge`[k] is the
// upper end of bin k. The probabilities of a chain's guesses are multiplied. All costs are in tokens.
struct NxCutoff {
    enum { BINS = 9 };
    float edge[BINS - 1], rate[BINS];
    float row_cost;    // cost of a row in the target's step
    float mean_rate;   // probability that a guess is accepted, before it is made
    float guess_cost;  // cost of one more guess and its row, for each chain that goes on
    float pass_cost;   // cost of one more pass, for any number of chains
    int bin(float confidence) const {
        int k = 0;
        while (k < BINS - 1 && confidence >= edge[k]) ++k;
        return k;
    }
};
}
