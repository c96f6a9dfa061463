"""Tokens that ranks choose together, each among its own columns of the head, are those that one rank chooses:
of verified rows and of drafted chains, beside rows that need all logits."""

from __future__ import annotations

import itertools
import math
import socket
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
import torch
from parity.oracle import random_checkpoint
from parity.test_native_ranks import WIDE, Make, of_ranks, tokens
from support.native_kernels import built_levels
from support.native_model import native_model, pool_for
from torch import Tensor

from nextn.cutoff import Cutoff
from nextn.distributed.mesh import MeshRanks
from nextn.draft import Draft
from nextn.layers.batch import Span
from nextn.models.base import Chain, ChainsRequest
from nextn.models.native import NativeModel
from nextn.models.native_weights import Drafting
from nextn.ops.base import NO_TOKEN, DrawParams
from nextn.ops.cpu.draw import draw
from nextn.ops.cpu.library import library

LEVELS = built_levels()
pytestmark = pytest.mark.skipif(not LEVELS, reason="no native kernels")

V = WIDE["vocab_size"]  # 6 panels: two ranks have 192 and 141 columns, four have 64, 128, 64 and 77
BORDERS = (63, 64, 191, 192, 255, 256)
PROMPTS = [tokens(256, n) for n in (5, 1, 30, 40)]
ROWS = sum(map(len, PROMPTS))  # more than ranks hand round at once
HEAD = "lm_head.weight"

FILTERS: list[dict[str, Any]] = [
    {"temperature": 0.0}, {}, {"temperature": 0.7, "top_k": V}, {"top_k": 20}, {"top_p": 0.9},
    {"min_p": 0.05, "temperature": 2.0}, {"temperature": 0.0, "top_k": 1}, {"temperature": 30.0},
]  # fmt: skip


def drawn(seed: int, position: int = 0, rows: int = 1, **changes: Any) -> DrawParams:
    plain = {"temperature": 1.0, "top_p": 1.0, "min_p": 0.0, "top_k": 0, "stream": 0}
    return DrawParams(seed=seed, position=position, rows=rows, **{**plain, **changes})


def draws(rows: int) -> list[DrawParams]:
    """Runs of 1, 2, 3, 1, ... rows."""
    made: list[DrawParams] = []
    while (left := rows - sum(d.rows for d in made)) > 0:
        n = len(made)
        made.append(drawn(n, 2**32 - 5 + n % 4, min(left, 1 + n % 3), **FILTERS[n % len(FILTERS)]))
    return made


def checkpoint(ties: bool = False, **changes: Any) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """ties: tokens on either side of a border have the same logits, often the largest ones."""
    config, tensors = random_checkpoint(WIDE | changes, seed=3)
    if ties:
        head = tensors[HEAD]
        head[[191, 192, 256]] = head[7] = 30 * head[7].clone()
        head[[63, 64, 255, 332]] = -head[7]
    return config, tensors


def states(model: NativeModel) -> Tensor:
    pool = pool_for(model, 40, 16, 0)
    spans, page = [], 1
    for prompt in PROMPTS:
        spans.append(Span(prompt, 0, list(range(page, page + 3))))
        page += 3
    return model.forward(model.batch(spans, 16), pool).clone()


Chosen = tuple[list[int], Tensor]


def chosen(whole: int, spoil: Sequence[int], model: NativeModel) -> Chosen:
    hidden = states(model)
    hidden[list(spoil), 0] = torch.nan
    logits, found = model.choices(hidden, whole, draws(ROWS - whole))
    logits = logits.clone()
    again = model.choices(hidden, whole, draws(ROWS - whole))  # nothing is left of the first time
    assert again[1] == found
    assert torch.equal(logits, again[0]) or spoil
    return found, logits


def want(make: Make, whole: int, spoil: Sequence[int] = ()) -> Chosen:
    """By the choice among all logits of one rank."""

    def work(model: NativeModel) -> Chosen:
        hidden = states(model)
        hidden[list(spoil), 0] = torch.nan
        logits = model.logits(hidden).clone()
        return draw(library(), logits[whole:].clone(), draws(ROWS - whole)), logits[:whole]

    [found] = of_ranks(make, 1, work)
    return found


def check(make: Make, whole: int, spoil: Sequence[int] = (), sizes: Sequence[int] = (1, 2, 4)) -> list[int]:
    expected = want(make, whole, spoil)
    for size in sizes:
        for found in of_ranks(make, size, partial(chosen, whole, spoil)):
            assert found[0] == expected[0]
            assert torch.equal(found[1].nan_to_num(7.0), expected[1].nan_to_num(7.0))
    return expected[0]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("whole", [0, 70, ROWS])
def test_the_same_tokens_beside_rows_that_need_all_logits(whole: int, level: str) -> None:
    config, tensors = checkpoint()
    check(partial(native_model, config, tensors, level=level), whole)


@pytest.mark.parametrize("changes", [{"vocab_size": 261, "tie_word_embeddings": True}, {"vocab_size": 256}])
def test_tied_weights_and_other_vocabularies(changes: dict[str, Any]) -> None:
    config, tensors = checkpoint(**changes)
    check(partial(native_model, config, tensors), 2)


def test_of_equals_the_lowest_wins() -> None:
    config, tensors = checkpoint(ties=True)
    found = check(partial(native_model, config, tensors), 0)
    greedy, at = [], 0
    for d in draws(ROWS):
        greedy += found[at : at + d.rows] if d.temperature == 0 else []
        at += d.rows
    assert {7, 63} <= set(greedy)
    assert not {191, 192, 256, 64, 255, 332} & set(greedy)


def test_noise_alone_decides() -> None:
    config, tensors = checkpoint()
    tensors[HEAD][:] = 0
    found = check(partial(native_model, config, tensors), 0)
    assert len(set(found)) > 30
    assert found[0] == 0


@pytest.mark.parametrize("token", [0, 64, 191, 255, V - 1])
def test_a_logit_that_is_not_finite_spoils_its_row(token: int) -> None:
    """Whichever rank has it. Where it is -infinity there is a choice among the others."""
    config, tensors = checkpoint()
    tensors[HEAD][token] = math.inf
    assert NO_TOKEN in check(partial(native_model, config, tensors), 0, sizes=(2, 4))
    tensors[HEAD][token] = 0
    tensors[HEAD][token, 0] = -3e38
    check(partial(native_model, config, tensors), 0, sizes=(2,))


def test_states_that_are_no_numbers() -> None:
    config, tensors = checkpoint()
    found = check(partial(native_model, config, tensors), 4, spoil=(2, 6, 70))
    assert [i for i, token in enumerate(found) if token == NO_TOKEN] == [2, 66]


def over_sockets(make: Make, size: int, work: Callable[[NativeModel], Any]) -> list[Any]:
    """As `of_ranks`, of ranks that share no memory."""
    data: list[list[socket.socket | None]] = [[None] * size for _ in range(size)]
    for a, b in itertools.combinations(range(size), 2):
        data[a][b], data[b][a] = socket.socketpair()
    ranks = [MeshRanks(rank, own, {}, size, 300) for rank, own in enumerate(data)]

    def run(own: MeshRanks) -> Any:
        with torch.inference_mode():
            return work(make(threads=1, ranks=own))

    with ThreadPoolExecutor(size) as threads:
        found = list(threads.map(run, ranks))
    for each in ranks:
        each.close()
    return found


@pytest.mark.parametrize("size", [2, 4])
def test_over_sockets(size: int) -> None:
    config, tensors = checkpoint(ties=True)
    make = partial(native_model, config, tensors)
    expected = want(make, 3)
    for found in over_sockets(make, size, partial(chosen, 3, ())):
        assert found[0] == expected[0]
        assert torch.equal(found[1], expected[1])
    [drafts] = of_ranks(make, 1, partial(chains, True))
    assert over_sockets(make, size, partial(chains, True)) == [drafts] * size


# --- chains

CUTOFF = Cutoff((0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.99), 0.1, 0.7, 0.05, 0.2)
DRAFTINGS = {
    "all": Drafting(),
    "int8": Drafting(int8=True),
    "some": Drafting(tokens=tuple(range(0, V, 2))),
    "in another order": Drafting(tokens=(7, *range(V - 1, 9, -3), 8)),
    "three": Drafting(tokens=(200, 3, 5)),
}


def chains(cut: bool, model: NativeModel) -> tuple[list[Draft], list[int]]:
    pool = pool_for(model, 40, 16, 0)
    spans, page = [], 1
    for prompt in PROMPTS * 2:
        spans.append(Span(prompt, 0, list(range(page, page + 4))))
        page += 4
    batch = model.batch(spans, 16)
    hidden = model.forward(batch, pool)
    asked = [
        Chain(i, drawn(i, 40 + i, **FILTERS[i]), 1 + i % 4, cut and i % 3 > 0)
        for i in range(len(spans))
        if i != 4
    ]
    request = ChainsRequest(batch, hidden, range(ROWS * 2), asked, CUTOFF if cut else None)
    drafts, passes = model.draft_chains(request, pool)
    return drafts, list(passes)


@pytest.mark.parametrize(("name", "cut"), [*((name, True) for name in DRAFTINGS), ("all", False)])
def test_the_same_chains(name: str, cut: bool) -> None:
    config, tensors = checkpoint()
    make = partial(native_model, config, tensors, drafting=DRAFTINGS[name])
    [expected] = of_ranks(make, 1, partial(chains, cut))
    assert sum(len(draft) for draft in expected[0])
    for size in (2, 4):
        for found in of_ranks(make, size, partial(chains, cut)):
            assert found == expected
