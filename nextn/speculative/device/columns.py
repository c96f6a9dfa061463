"""The columns of the inputs and results of a step on the device. Each request has a row."""

from nextn.draft import MAX_DRAFTS

# Inputs: the request's slot of the relay; depth of the draft to make, -1 if the draft layer does not run over
# the step's positions; maximum number of drafts to verify; whether the cutoff may end the draft; the first
# position that the draft layer attends to.
SLOT, NUM_STEPS, MOST_DRAFTS, CUT, DRAFT_FROM = range(5)
INPUTS = 5
# Results. After them come tokens [1 + MAX_DRAFTS], next drafts [MAX_DRAFTS] and their bins [MAX_DRAFTS].
STARTED, VERIFIED, TAKEN, KEPT, MADE, DEPTH, FAILED, OVER = range(8)
RESULTS = 8
GUESSES = RESULTS + 1 + MAX_DRAFTS
BINS = GUESSES + MAX_DRAFTS
RESULT_WIDTH = BINS + MAX_DRAFTS
