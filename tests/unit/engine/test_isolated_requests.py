"""Something raises for one request amid a step: it ends with an error, the others as if it were not there."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
from support.hostile_model import HostileModel, use
from support.toy_grammar import ToyGrammar

from nextn.config import EngineConfig
from nextn.constraint import Constraint
from nextn.engine import logprobs
from nextn.engine.engine import Engine
from nextn.kvcache.manager import KVManager
from nextn.request import Output, Request, SamplingParams, SpeculativeParams
from nextn.sampling import penalties
from nextn.sampling.choice import Choice
from nextn.sampling.isolate import isolated
from nextn.speculative import guesses, verifier

BAD = 666  # a seed
ANY = Constraint("regex", "")
PLAIN = SamplingParams(max_tokens=20, seed=1, frequency_penalty=0.5, logprobs=1, prompt_logprobs=1)


class Boom(Exception):
    pass


class Panic(BaseException):
    """As Rust's come through."""


def make(**options: Any) -> Engine:
    options = {"speculative_num_steps": 3, **options}
    config = EngineConfig(
        model_path="fake:0.9,0.7", threads=1, kv_cache_tokens=2048, context_length=128, check_integrity=True,
        **options,
    )  # fmt: skip
    return use(Engine(config), HostileModel())


def run(engine: Engine, requests: Sequence[Request]) -> dict[str, tuple[list[int], Output]]:
    """rid -> (tokens, last output)."""
    tokens: dict[str, list[int]] = {}
    last = {}
    for request in requests:
        engine.add(request)
        tokens[request.rid] = []
    for _ in range(200):
        for out in engine.step():
            tokens[out.rid] += out.tokens
            if out.finish_reason is not None:
                assert out.rid not in last
                last[out.rid] = out
    assert not engine.has_work()
    assert engine.stats().used_tokens == 0
    return {rid: (tokens[rid], last[rid]) for rid in tokens}


def batch(params: SamplingParams = PLAIN, grammar: Any = None) -> list[Request]:
    """One that something is to happen to, between others."""
    bad = Request("bad", [9, 8, 7], params.replace(seed=BAD), grammar=grammar)
    return [Request("a", [5, 6, 7], PLAIN), bad, Request("b", [4] * 30, PLAIN.replace(temperature=0.0))]


TREE, CHAIN = {"speculative_eagle_topk": 2}, {"speculative_eagle_topk": 1}


@cache
def unharmed() -> dict[str, tuple[list[int], Output]]:
    return run(make(speculative_num_steps=0), batch())


@pytest.fixture(scope="module", autouse=True)
def before_anything_fails() -> None:
    unharmed()


def check(found: dict[str, tuple[list[int], Output]], message: str, code: str = "request_failed") -> None:
    want = unharmed()
    for rid in ("a", "b"):
        assert found[rid][0] == want[rid][0]
        assert found[rid][1].finish_reason == want[rid][1].finish_reason
    tokens, out = found["bad"]
    assert (out.finish_reason, out.error_code) == ("error", code)
    assert message in str(out.error)
    assert tokens == want["bad"][0][: len(tokens)]
    assert out.spec is not None


@pytest.mark.parametrize("shape", [CHAIN, TREE], ids=["chain", "tree"])
@pytest.mark.parametrize("after", [0, 5])
def test_penalties(shape: dict[str, int], after: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are made for all rows of the target together."""
    penalize = penalties.apply_penalties

    def fail(logits: Any, choices: Sequence[Choice]) -> None:
        for c in choices:
            if c.params.seed == BAD and len(c.tokens) - c.num_prompt >= after:
                raise Boom("penalties")
        penalize(logits, choices)

    monkeypatch.setattr(verifier, "apply_penalties", fail)
    found = run(make(**shape), batch())
    check(found, "the request failed in verification: Boom: penalties")
    assert len(found["bad"][0]) >= after


@pytest.mark.parametrize("mode", ["rejection", "block", "typical"])
def test_other_verify_modes(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    verdict = verifier.Verifier._verdict

    def fail(self: Any, span: Any, *args: Any) -> Any:
        if span.params.seed == BAD:
            raise Boom("verdict")
        return verdict(self, span, *args)

    monkeypatch.setattr(verifier.Verifier, "_verdict", fail)
    found = run(make(), batch(PLAIN.replace(speculative=SpeculativeParams(verify=mode))))
    check(found, "the request failed in verification: Boom: verdict")


@pytest.mark.parametrize(("shape", "name"), [(CHAIN, "choose"), (TREE, "rank")], ids=["chain", "tree"])
def test_guesses(shape: dict[str, int], name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    guess = getattr(guesses, name)

    def fail(logits: Any, choices: Sequence[Choice], *args: Any) -> Any:
        if any(c.params.seed == BAD and len(c.path) == 1 for c in choices):
            raise Boom("guess")
        return guess(logits, choices, *args)

    monkeypatch.setattr(guesses, name, fail)
    found = run(make(**shape), batch())
    check(found, "the request failed in drafting: Boom: guess")
    assert found["bad"][0]  # what was verified stands
    assert found["a"][1].spec is not None
    assert len(found["a"][1].spec.proposed) == 3


@pytest.mark.parametrize("name", ["token_logprobs", "prompt_logprobs"])
def test_log_probabilities(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the prompt they come first, else of the first token that is chosen."""
    tell, bad = getattr(logprobs, name), [8] if name == "prompt_logprobs" else None

    def fail(*args: Any) -> Any:
        if any(a.token in (bad or [asked]) and a.row < 6 for a in args[-1]):
            raise Boom("telling")
        return tell(*args)

    asked = unharmed()["bad"][0][0]
    monkeypatch.setattr(logprobs, name, fail)
    check(run(make(), batch()), "the request failed in log-probabilities: Boom: telling")


@pytest.mark.parametrize("method", ["commit", "share"])
def test_commit(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    done = getattr(KVManager, method)

    def fail(self: Any, req: Request, *args: Any) -> None:
        if req.rid == "bad":
            raise Boom(method)
        done(self, req, *args)

    monkeypatch.setattr(KVManager, method, fail)
    check(run(make(), batch()), f"the request failed in its commit: Boom: {method}")


class Failing(ToyGrammar):
    """Raises from `method` on, once so many tokens are there."""

    def __init__(self, method: str, after: int, error: BaseException) -> None:
        super().__init__(4096, 99, spread=2)
        self.method, self.after, self.error = method, after, error

    def _reach(self, method: str) -> None:
        if method == self.method and len(self.tokens) >= self.after:
            raise self.error

    def mask(self) -> Any:
        self._reach("mask")
        return super().mask()

    def advance(self, tokens: Sequence[int]) -> int:
        self._reach("advance")
        return super().advance(tokens)

    def rollback(self, count: int) -> None:
        self._reach("rollback")
        super().rollback(count)


@pytest.mark.parametrize("shape", [CHAIN, TREE, {"speculative_num_steps": 0}], ids=["chain", "tree", "none"])
@pytest.mark.parametrize("method", ["mask", "advance", "rollback"])
@pytest.mark.parametrize("after", [0, 4])
@pytest.mark.parametrize("error", [Boom("lib"), Panic("lib")], ids=["exception", "panic"])
def test_a_grammars_library(method: str, after: int, error: BaseException, shape: dict[str, int]) -> None:
    if (method, after) == ("rollback", 0):
        after = 1  # nothing to take back before
    grammar = Failing(method, after, error)
    found = run(make(**shape), batch(PLAIN.replace(constraint=ANY), grammar))
    tokens, out = found.pop("bad")
    assert (out.finish_reason, out.error_code) == ("error", "grammar_error")
    assert out.error == f"the grammar's library failed: {type(error).__name__}: lib"
    allowed = ToyGrammar(4096, 99, spread=2)
    assert allowed.advance(tokens) == len(tokens) <= after + 4
    want = run(make(speculative_num_steps=0), batch())
    assert all(found[rid][0] == want[rid][0] for rid in found)


def test_ctrl_c_is_nobodys_error() -> None:
    engine = make()
    for request in batch(PLAIN.replace(constraint=ANY), Failing("mask", 3, KeyboardInterrupt())):
        engine.add(request)
    with pytest.raises(KeyboardInterrupt):
        [engine.step() for _ in range(20)]


def test_where_all_fail_alone() -> None:
    def work(items: Sequence[int]) -> list[int]:
        raise Boom(f"of {len(items)}")

    assert isolated(work, [3, 4], lambda item, e: f"{item} {e}", "work") == ["3 of 1", "4 of 1"]  # type: ignore[arg-type]
