// When a chain of guesses has gone on for long enough, see nextn/cutoff.py.
#pragma once

extern "C" {
// A guess holds with probability `rate`[k] where its confidence (choose.h) is below `edge`[k]; along a chain that
// multiplies. All costs are counted in tokens.
struct NxCutoff {
    enum { BINS = 9 };
    float edge[BINS - 1], rate[BINS];
    float keep;   // of a guess in the target's step
    float usual;  // probability that a guess not made yet holds
    float each;   // of a further guess, for each chain that goes on,
    float pass;   // and whatever their number
    int bin(float confidence) const {
        int k = 0;
        while (k < BINS - 1 && confidence >= edge[k]) ++k;
        return k;
    }
};
}
