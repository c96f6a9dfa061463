"""Verify modes in the engine: requests of all modes side by side, what is kept between steps, refusals.

That sampled texts keep the target's distribution is tests/parity/test_distribution.py's matter.
"""

from __future__ import annotations

import itertools

import pytest
from torch import Tensor

from nextn.config import EngineConfig
from nextn.engine.engine import Engine
from nextn.params_check import VERIFY_MODES
from nextn.request import Request, SamplingParams, SpeculativeParams

MODES = {
    "default": SpeculativeParams(),
    "exact": SpeculativeParams(verify="exact"),
    "rejection": SpeculativeParams(verify="rejection"),
    "block": SpeculativeParams(verify="block"),
    "typical": SpeculativeParams(verify="typical"),
    "lossy": SpeculativeParams(verify="typical", accept_threshold_single=0.2, accept_threshold_acc=0.5),
}


def make(**options) -> Engine:
    options = {"context_length": 72, "threads": 1, "kv_cache_tokens": 2048, **options}
    return Engine(EngineConfig(model_path="fake:0.9,0.7", check_integrity=True, **options))


def job(name: str, number: int = 0, **params) -> Request:
    """A request named after its mode. The fake model is sure of itself, so the temperature is high."""
    params = {"max_tokens": 24, "seed": 5 + number, "temperature": 4.0, "top_k": 8, **params}
    params["ignore_eos"] = True
    asked = SamplingParams(speculative=MODES[name], **params)
    return Request(f"{name} {number}", [9 + number, *range(30, 38)], asked)


def kept(engine: Engine) -> dict[str, list[Tensor]]:
    """The probabilities that drafts were drawn from, by request."""
    return {rid: s.drafting.chances for rid, s in engine._executor.states.items() if s.drafting.chances}


def run(engine: Engine, requests: list[Request]) -> dict[str, list[int]]:
    for request in requests:
        engine.add(request)
    tokens: dict[str, list[int]] = {request.rid: [] for request in requests}
    while engine.has_work():
        for out in engine.step():
            tokens[out.rid] += out.tokens
        found = kept(engine)
        assert set(found) <= {r.rid for r in requests if r.params.verify_mode in ("rejection", "block")}
        for rid, rows in found.items():
            req = engine._scheduler.by_rid.get(rid)
            assert req is None or len(req.draft) == len(rows) <= 3
    assert not kept(engine)
    return tokens


def test_modes_side_by_side():
    """With the pool as large as it is, steps cut requests up alike: every text is what it is alone."""
    names = [(mode, i) for mode in MODES for i in range(2)]
    together = run(make(speculative_num_steps=3), [job(*name) for name in names])
    plain = run(make(speculative_num_steps=0), [job(*name) for name in names])
    engine = make(speculative_num_steps=3)
    for name in names:
        ((rid, alone),) = run(engine, [job(*name)]).items()
        assert together[rid] == alone
        if name[0] in ("default", "exact"):
            assert plain[rid] == alone
    assert len({tuple(together[f"{mode} 0"]) for mode in ("exact", "rejection", "typical")}) == 3


@pytest.mark.parametrize("topk", [1, 3])
def test_greedy_texts_are_the_same_in_every_mode(topk):
    modes = [m for m in MODES if topk == 1 or m not in ("rejection", "block")]
    engine = make(speculative_num_steps=3, speculative_eagle_topk=topk)
    texts = run(engine, [job(mode, temperature=0) for mode in modes])
    want = next(iter(run(make(speculative_num_steps=0), [job("exact", temperature=0)]).values()))
    assert all(text == want for text in texts.values())
    assert engine.stats().spec.accept_length > 2


@pytest.mark.parametrize("mode", VERIFY_MODES)
def test_the_engines_own_mode_is_that_of_requests_without_one(mode):
    own = run(make(speculative_num_steps=3, speculative_verify=mode), [job("default")])["default 0"]
    assert own == run(make(speculative_num_steps=3), [job(mode)])[f"{mode} 0"]


def test_thresholds_are_the_requests_or_the_engines():
    lossy = MODES["lossy"]
    engine = make(
        speculative_num_steps=3,
        speculative_verify="typical",
        speculative_accept_threshold_single=lossy.accept_threshold_single,
        speculative_accept_threshold_acc=lossy.accept_threshold_acc,
    )
    own = run(engine, [job("default"), job("exact")])
    other = run(make(speculative_num_steps=3), [job("lossy"), job("typical"), job("exact")])
    assert own["default 0"] == other["lossy 0"] != other["typical 0"]
    assert own["exact 0"] == other["exact 0"]
    assert engine.startup["verify"] == "typical, lossy"


def test_what_is_lossy_says_so():
    engine = make(speculative_num_steps=2)
    for mode, greedy in itertools.product(MODES, (0.0, 1.0)):
        engine.add(job(mode, int(greedy), temperature=greedy))
    said = {}
    while engine.has_work():
        said |= {out.rid: out.spec.lossy for out in engine.step() if out.spec is not None}
    assert len(said) == 2 * len(MODES)
    assert [rid for rid, lossy in said.items() if lossy] == ["lossy 1"]
    assert engine.startup["verify"] == "exact"


@pytest.mark.parametrize("mode", ["rejection", "block", "typical"])
def test_retracted_and_aborted_requests_leave_nothing_behind(mode):
    small = make(speculative_num_steps=3, kv_cache_tokens=92, page_size=4)
    requests = [job(mode, i, max_tokens=36) for i in range(3)]
    texts = run(small, requests)
    assert small.stats().retracted > 0
    assert {len(text) for text in texts.values()} == {36}

    engine = make(speculative_num_steps=3)
    for request in (job(mode, i) for i in range(3)):
        engine.add(request)
    for _ in range(3):
        engine.step()
    assert len(kept(engine)) == (0 if mode == "typical" else 3)
    for i in range(2):
        engine.abort(f"{mode} {i}")
    again = job(mode, 0)  # of the same id, without a draft yet
    engine.add(again)
    engine.step()
    assert f"{mode} 1" not in kept(engine)
    while engine.has_work():
        engine.step()
    assert again.tokens[9:] == run(make(speculative_num_steps=3), [job(mode, 0)])[f"{mode} 0"]


@pytest.mark.parametrize("mode", ["rejection", "block"])
def test_trees_are_refused(mode):
    with pytest.raises(ValueError, match=rf"--speculative-verify is '{mode}': it verifies chains"):
        make(speculative_num_steps=2, speculative_eagle_topk=2, speculative_verify=mode)
    engine = make(speculative_num_steps=2, speculative_eagle_topk=2)
    with pytest.raises(ValueError, match=rf"speculative.verify is '{mode}': it verifies chains"):
        engine.add(job(mode))
    assert not engine.has_work()


def test_acceptance_by_lot_knows_no_modes():
    engine = make(speculative_simulate_accept_length=1.5)
    with pytest.raises(ValueError, match=r"speculative.verify is 'block': with --speculative-simulate"):
        engine.add(job("block"))
    with pytest.raises(ValueError, match=r"--speculative-verify is 'typical': with --speculative-simulate"):
        make(speculative_simulate_accept_length=1.5, speculative_verify="typical")


def test_defaults_change_while_it_runs():
    engine = make(speculative_num_steps=3)
    engine.set_speculative_defaults(MODES["lossy"])
    changed = run(engine, [job("default")])["default 0"]
    assert changed == run(make(speculative_num_steps=3), [job("lossy")])["lossy 0"]
    with pytest.raises(
        ValueError,
        match=r"accept_threshold_acc is 0.5: it applies to verify 'typical' only, and verify is 'exact'",
    ):
        engine.set_speculative_defaults(SpeculativeParams(accept_threshold_acc=0.5))


def test_thresholds_without_a_use_are_refused():
    engine = make()
    asked = SamplingParams(speculative=SpeculativeParams(accept_threshold_acc=0.5))
    with pytest.raises(
        ValueError,
        match=r"accept_threshold_acc is 0.5: it applies to verify 'typical' only, and verify is 'exact'",
    ):
        engine.add(Request("a", [2], asked))
    with pytest.raises(
        ValueError, match=r"--speculative-accept-threshold-single is 0.5: .* applies to verify 'typical' only"
    ):
        make(speculative_accept_threshold_single=0.5)
    with pytest.raises(ValueError, match=r"--speculative-accept-threshold-acc is 1.5: .* between 0 and 1"):
        make(speculative_verify="typical", speculative_accept_threshold_acc=1.5)
