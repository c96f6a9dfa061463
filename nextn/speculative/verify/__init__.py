"""How drafts are verified: one file a mode, all pure.

    exact      a draft holds iff it is the token the target chooses with the request's noise
    rejection  a draft holds with chance min(1, p / q), one after another
    block      the same ratios, taken over the whole chain: never fewer drafts hold than in `rejection`
    typical    a draft holds if the target finds it likely enough; lossy

Terms of the last three: n drafts; p [n + 1, V], the target's distributions after temperature and filters, row
0 after the root, row j + 1 after draft j; q [n, V], the distributions that the drafts were drawn from, row j
draft j's; `coins`, uniform in (0, 1), one for each depth (nextn.sampling.draws). In `rejection` and `block`
the text keeps the target's distribution on two conditions:

* Coins and the noise of the final token are independent of the noise that drew the drafts, and none is used
  twice. `exact` wants the opposite: there the drafter draws with the target's own noise.
* How many drafts are drawn may depend on the drafts before, but no draft is left out for what it is: q is the
  distribution of a draft that was drawn, not of one that was drawn and then looked at.
"""
