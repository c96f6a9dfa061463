"""Whatever the logits are, of the target or of the drafter: nothing raises, what is chosen may be chosen, and
drafts change no text."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.hostile_model import FINITE, KINDS, NOT_FINITE, HostileModel, use
from support.toy_grammar import ToyGrammar

from nextn.config import EngineConfig
from nextn.constraint import Constraint, GrammarCursor
from nextn.engine.engine import Engine
from nextn.ops.base import NO_TOKEN
from nextn.ops.cpu.draw import draw as native_draw
from nextn.ops.cpu.library import NoLibrary, library
from nextn.params_check import VERIFY_MODES
from nextn.request import GREEDY_BELOW, Request, SamplingParams, SpeculativeParams
from nextn.sampling.choice import Choice
from nextn.sampling.draws import DrawKey
from nextn.sampling.draws import draw as draw_from
from nextn.sampling.sampler import choose, draw, probabilities, rank
from nextn.speculative.tree import Growing

try:
    library()
    DRAWS = {"reference": draw, "native": partial(native_draw, library())}
except NoLibrary:
    DRAWS = {"reference": draw}

V = 24
ENDS = frozenset({0, 1})
TINY = (1e-39, 1e-45, 5e-324, 0.01, 1.0, 1.3, 2.0)

finite = st.sampled_from([0.0, -0.0, 1.0, 1.5, -2.0, 1e-40, 1e10, -1e10, 7.25])
wild = st.one_of(finite, st.sampled_from([math.nan, math.inf, -math.inf, 3e38, -3e38]))


def rows(numbers: st.SearchStrategy[float]) -> st.SearchStrategy[list[float]]:
    return st.one_of(st.lists(numbers, min_size=V, max_size=V), numbers.map(lambda x: [x] * V))


params = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 1e-6, 1e-5, 0.3, 1.0, 100.0]),
    top_k=st.sampled_from([-1, 1, 3, 1000]),
    top_p=st.sampled_from([1e-30, 0.5, 1.0]),
    min_p=st.sampled_from([0.0, 0.1, 1.0]),
    repetition_penalty=st.sampled_from(TINY),
    frequency_penalty=st.sampled_from([-2.0, 0.0, 2.0]),
    presence_penalty=st.sampled_from([-2.0, 0.0, 2.0]),
    min_tokens=st.sampled_from([0, 9]),
    logit_bias=st.sampled_from([{}, {0: 100.0, 5: -100.0}]),
    seed=st.integers(0, 2**64 - 1),
)
lengths = st.integers(1, 4)


def choice(p: SamplingParams, length: int | None, path: tuple[int, ...] = (5, 1)) -> Choice:
    p.check(V)
    allowed = None
    if length is not None:
        allowed = GrammarCursor(ToyGrammar(V, length), ENDS).allowed()
    return Choice(p, [1, 2, 3, 5], path, 2, ENDS, allowed)


@settings(max_examples=70, derandomize=True, deadline=None)
@given(rows(wild), params, st.one_of(st.none(), lengths))
def test_a_choice_is_one_that_may_be_made_or_none(
    logits: list[float], p: SamplingParams, length: int
) -> None:
    c, z = choice(p, length), torch.tensor([logits])
    found = {choose(z.clone(), [c], d)[0] for d in DRAWS.values()}
    assert len(found) == 1
    (token,) = found
    assert token == NO_TOKEN or 0 <= token < V
    if token != NO_TOKEN:
        assert math.isfinite(logits[token])
        assert c.allowed is None or c.allowed.tokens[token]

    best = rank(z.clone(), [c], 5)[0]
    assert all(0 <= t < V for t, _ in best)
    chances = probabilities(z.clone(), [c])
    assert not chances.isnan().any()
    (drawn,) = draw_from(1, chances, [DrawKey(1, 0, 4, 1)])
    assert (drawn == NO_TOKEN) == (not chances.any())
    assert drawn == NO_TOKEN or chances[0, drawn] > 0
    if p.temperature >= GREEDY_BELOW and token == NO_TOKEN:
        assert not chances.any()


@settings(max_examples=70, derandomize=True, deadline=None)
@given(rows(finite), params, st.one_of(st.none(), lengths))
def test_among_finite_logits_there_is_a_choice(logits: list[float], p: SamplingParams, length: int) -> None:
    """Though min_tokens forbids the end, and a grammar everything else."""
    c = choice(p, length)
    for name, d in DRAWS.items():
        (token,) = choose(torch.tensor([logits]), [c], d)
        assert token != NO_TOKEN, name
        if c.allowed is not None and c.allowed.tokens.nonzero()[0].max() > 1:
            assert token not in ENDS or p.min_tokens == 0
    assert probabilities(torch.tensor([logits]), [c]).any()


@settings(max_examples=70, derandomize=True, deadline=None)
@given(
    st.lists(rows(wild), min_size=1, max_size=6),
    params,
    st.integers(1, 4),
    st.integers(1, 4),
    st.integers(0, 20),
)
def test_a_tree_of_any_guesses_is_a_tree(
    given_rows: list[list[float]], p: SamplingParams, topk: int, steps: int, nodes: int
) -> None:
    p.check(V)
    tree, at = Growing(topk), 0
    for _ in range(steps):
        paths = [tuple(tree.path(node)) for node in tree.frontier]
        if not paths:
            break
        z = torch.tensor([given_rows[(at + i) % len(given_rows)] for i in range(len(paths))])
        at += len(paths)
        tree.grow(rank(z, [Choice(p, [1, 2], path, 1, ENDS) for path in paths], topk))
    draft = tree.best(nodes)
    parents = [draft.parent(i) for i in range(len(draft))]
    assert all(-1 <= parent < i for i, parent in enumerate(parents))
    assert all(0 <= t < V for t in draft.tokens)
    for keep in range(len(draft) + 1):
        cut = draft.cut(keep, steps)
        assert all(cut.parent(i) < i for i in range(len(cut)))
        assert cut.paths() is None or len(cut.paths() or ()) == len(cut) + 1


# --- in the whole engine

JOBS = [
    SamplingParams(max_tokens=12, temperature=0),
    SamplingParams(max_tokens=12, seed=1, top_p=0.9, repetition_penalty=1e-39, min_tokens=9),
    SamplingParams(
        max_tokens=12, seed=2, temperature=0.4, logprobs=2, prompt_logprobs=1, frequency_penalty=2
    ),
    SamplingParams(max_tokens=12, seed=3, constraint=Constraint("regex", ""), min_tokens=12, temperature=0.9),
    SamplingParams(max_tokens=12, seed=4, repetition_penalty=5e-324, ignore_eos=True, temperature=0.0),
]


def texts(
    engine: Engine, verify: str = "exact", only: int | None = None
) -> dict[str, tuple[list[int], str | None, str | None]]:
    found: dict[str, tuple[list[int], str | None, str | None]] = {}
    for i, p in enumerate(JOBS):
        if only is not None and i != only:
            continue
        grammar = None if p.constraint is None else ToyGrammar(4096, 9)
        asked = p.replace(speculative=SpeculativeParams(verify=verify))
        engine.add(Request(str(i), [5 + i, 6, 7], asked, grammar=grammar))
        found[str(i)] = ([], None, None)
    for _ in range(400):
        for out in engine.step():
            tokens, *_ = found[out.rid]
            found[out.rid] = (tokens + out.tokens, out.finish_reason, out.error_code)
            assert all(0 <= t < 4096 for t in out.tokens)
            if out.logprobs is not None:
                assert len(out.logprobs) == len(out.tokens)
        if not engine.has_work():
            break
    assert not engine.has_work()
    assert engine.stats().used_tokens == 0
    return found


def make(model: HostileModel, draws: str, **options: object) -> Engine:
    config = EngineConfig(
        model_path="fake", threads=1, kv_cache_tokens=2048, context_length=128, check_integrity=True,
        **options,  # type: ignore[arg-type]
    )  # fmt: skip
    engine = use(Engine(config), model)
    engine._executor.verifier.draw = DRAWS[draws]
    drafter = engine._executor.drafter
    getattr(drafter, "nextn", drafter).choose = DRAWS[draws]
    return engine


SHAPES = [{"speculative_eagle_topk": k, "speculative_num_steps": n} for k, n in ((1, 3), (2, 3), (3, 2))]
shapes = st.sampled_from(
    [*SHAPES, {"speculative_algorithm": "NGRAM"}, {"speculative_algorithm": "NEXTN+NGRAM"}]
)
some = st.lists(st.sampled_from(sorted(KINDS)), max_size=3, unique=True)


@settings(max_examples=5, derandomize=True, deadline=None)
@given(
    st.lists(st.sampled_from(sorted(FINITE)), max_size=3, unique=True),
    some,
    shapes,
    st.sampled_from(sorted(DRAWS)),
    st.integers(1, 3),
)
def test_hostile_drafts_change_no_text(
    target: list[str], draft: list[str], shape: dict[str, object], draws: str, spread: int
) -> None:
    model = HostileModel(target, draft, spread)
    plain = texts(make(HostileModel(target, (), spread), draws, speculative_num_steps=0))
    assert texts(make(model, draws, **shape)) == plain
    assert {reason for _, reason, _ in plain.values()} <= {"stop", "length"}


@settings(max_examples=5, derandomize=True, deadline=None)
@given(
    st.lists(st.sampled_from(sorted(NOT_FINITE)), min_size=1, max_size=3, unique=True),
    some,
    shapes,
    st.sampled_from(sorted(DRAWS)),
)
def test_a_request_ends_where_its_logits_are_not_finite(
    target: list[str], draft: list[str], shape: dict[str, object], draws: str
) -> None:
    """It alone, at the same token with drafts and without."""
    model = HostileModel(target, draft, 9)
    plain = texts(make(HostileModel(target, (), 9), draws, speculative_num_steps=0))
    assert texts(make(model, draws, **shape)) == plain
    engine = make(HostileModel(target, (), 9), draws, speculative_num_steps=0)
    for only in range(len(JOBS)):
        assert texts(engine, only=only)[str(only)] == plain[str(only)]
    assert all((reason == "error") == (code == "logits_not_finite") for _, reason, code in plain.values())


@pytest.mark.parametrize("verify", VERIFY_MODES)
@pytest.mark.parametrize("number", range(len(KINDS)), ids=sorted(KINDS))
def test_every_verify_mode(verify: str, number: int) -> None:
    """Each kind of logits in some modes with these draws, in the others with those."""
    kinds = (sorted(KINDS)[number],)
    draws = sorted(DRAWS)[(number + list(VERIFY_MODES).index(verify)) % len(DRAWS)]
    # Where the mode has trees, one of the two engines has them: of every other kind the first.
    trees = 0 if verify in ("rejection", "block") else 1
    first = {"speculative_eagle_topk": 1 + trees * (number % 2), "speculative_num_steps": 3}
    other = {"speculative_eagle_topk": 1 + trees * (1 - number % 2), "speculative_num_steps": 3}
    broken_drafts = texts(make(HostileModel((), kinds, 2), draws, **first), verify)
    assert {reason for _, reason, _ in broken_drafts.values()} <= {"stop", "length"}
    broken = texts(make(HostileModel(kinds, kinds, 6), draws, **other), verify)
    reasons = {(reason, code) for _, reason, code in broken.values()}
    error = ("error", "logits_not_finite")
    assert reasons <= {("stop", None), ("length", None), error}
    assert error in reasons if kinds[0] in NOT_FINITE else kinds[0] not in FINITE or error not in reasons
