"""The columns of what goes into a step on the device and of what comes out of it, a row for each request."""

from nextn.draft import MAX_DRAFTS

# Inputs: its slot of the relay; steps of the draft to make, -1 where the draft layer does not see the step's
# positions; drafts to verify, at most; may the cutoff end the draft? The first position that the drafter
# sees.
SLOT, NUM_STEPS, MOST_DRAFTS, CUT, DRAFT_FROM = range(5)
INPUTS = 5
# Results, before tokens [1 + MAX_DRAFTS], next drafts [MAX_DRAFTS] and their bins [MAX_DRAFTS].
STARTED, VERIFIED, TAKEN, KEPT, MADE, DEPTH, FAILED, OVER = range(8)
RESULTS = 8
GUESSES = RESULTS + 1 + MAX_DRAFTS
BINS = GUESSES + MAX_DRAFTS
RESULT_WIDTH = BINS + MAX_DRAFTS
