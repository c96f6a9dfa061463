"""The verify modes: one file per mode, without side effects.

    exact      a draft is accepted if and only if the target chooses it with the request's noise
    rejection  drafts are accepted one after the other, each with probability min(1, p / q)
    block      the same ratios over the whole chain; accepts at least as many drafts as `rejection`
    typical    a draft is accepted if the target finds it likely enough; lossy

Terms used in the last three: n drafts; p [n + 1, V], the target's distributions after temperature and
filters, row 0 after the root, row j + 1 after draft j; q [n, V], the distributions that the drafts were drawn
from, row j for draft j; `coins`, uniform in (0, 1), one for each depth (nextn.sampling.draws). In `rejection`
and `block` the text keeps the target's distribution on two conditions:

* Coins and the noise of the final token are independent of the noise that drew the drafts, and none is used
  twice. `exact` wants the opposite: there the drafter draws with the target's own noise.
* The number of drafts may depend on earlier drafts, but no draft may be dropped because of its own token: q
  is the distribution of all drafts that are drawn, not of a selection of them.
"""
