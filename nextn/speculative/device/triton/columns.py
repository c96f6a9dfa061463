"""Columns of inputs, results and the relay, as constants of kernels."""

from triton.language import constexpr

from nextn.cutoff import NO_GUESS as _NO_GUESS
from nextn.draft import MAX_DRAFTS as _MAX_DRAFTS
from nextn.speculative.device import columns, relay

SLOT, NUM_STEPS, MOST_DRAFTS = map(constexpr, (columns.SLOT, columns.NUM_STEPS, columns.MOST_DRAFTS))
CUT, DRAFT_FROM, INPUTS = map(constexpr, (columns.CUT, columns.DRAFT_FROM, columns.INPUTS))
STARTED, VERIFIED, TAKEN = map(constexpr, (columns.STARTED, columns.VERIFIED, columns.TAKEN))
KEPT, MADE, DEPTH = map(constexpr, (columns.KEPT, columns.MADE, columns.DEPTH))
FAILED, OVER, RESULTS = map(constexpr, (columns.FAILED, columns.OVER, columns.RESULTS))
GUESSES, BINS, RESULT_WIDTH = map(constexpr, (columns.GUESSES, columns.BINS, columns.RESULT_WIDTH))
LENGTH, ROOT, DRAFTS = map(constexpr, (relay.LENGTH, relay.ROOT, relay.DRAFTS))
ENDED, LIMIT, TOKENS = map(constexpr, (relay.ENDED, relay.LIMIT, relay.TOKENS))
END_IDS, ENDS, WIDTH = map(constexpr, (relay.END_IDS, relay.ENDS, relay.WIDTH))
MAX_DRAFTS, NO_GUESS = constexpr(_MAX_DRAFTS), constexpr(_NO_GUESS)
