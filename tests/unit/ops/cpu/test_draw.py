"""The native choice against `nextn.sampling.sampler`: the same tokens from the same logits and seeds."""

from __future__ import annotations

import math

import pytest
import torch
from scipy import stats

from nextn.ops.base import NO_TOKEN, DrawParams
from nextn.ops.cpu.draw import draw
from nextn.ops.cpu.library import library
from nextn.sampling import sampler
from nextn.sampling.filters import filter_logits

INF = math.inf


def native_draw(
    logits: torch.Tensor, draws: list[DrawParams], confidence: list[float] | None = None
) -> list[int]:
    return draw(library(), logits, draws, confidence)


def drawn(seed: int, position: int = 0, **changes: float) -> DrawParams:
    plain = {"temperature": 1.0, "top_p": 1.0, "min_p": 0.0, "top_k": 0, "stream": 0}
    return DrawParams(seed=seed, position=position, **{**plain, **changes})  # type: ignore[arg-type]


def logits(rows: int, vocab: int, spread: float = 3.0, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * spread


@pytest.mark.parametrize("vocab", [1, 2, 3, 4, 5, 17, 300, 4096])
@pytest.mark.parametrize(
    "filters",
    [
        {}, {"top_k": 1}, {"top_k": 20}, {"top_k": 100000}, {"top_p": 0.8}, {"top_p": 1e-6}, {"min_p": 0.05},
        {"min_p": 1.0}, {"top_k": 300, "top_p": 0.99}, {"top_k": 40, "top_p": 0.9, "min_p": 0.02},
        {"top_k": -1, "top_p": 0.999},
    ],
    ids=str,
)  # fmt: skip
def test_the_same_tokens(level: str, vocab: int, filters: dict[str, float]) -> None:
    z = logits(24, vocab, seed=vocab)
    asked = [
        drawn(
            seed=i * 0x9E3779B97F4A7C15 % 2**64,
            position=i * 1000,
            stream=i % 3,
            temperature=(0.3, 1.0, 2.5, 20.0)[i % 4],
            **filters,
        )
        for i in range(24)
    ]
    assert native_draw(z.clone(), asked) == sampler.draw(z.clone(), asked)


def test_rows_of_one_request(level: str) -> None:
    """Several rows with one draw are as many draws at positions that count up."""
    z = logits(7, 300)
    runs = [drawn(5, 10, rows=3), drawn(6, 2, top_k=9), drawn(7, 4, rows=3)]
    each = [*(drawn(5, 10 + i) for i in range(3)), drawn(6, 2, top_k=9), *(drawn(7, 4 + i) for i in range(3))]
    want = sampler.draw(z.clone(), each)
    assert len(set(want)) > 3
    assert (
        sampler.draw(z.clone(), runs) == native_draw(z.clone(), runs) == native_draw(z.clone(), each) == want
    )


def test_flat_and_peaked_logits(level: str) -> None:
    """All alike: the noise alone decides. One far above: the noise cannot."""
    flat, peaked = torch.zeros(40, 1000), torch.zeros(40, 1000)
    peaked[:, 700] = 200.0
    asked = [drawn(i, position=7) for i in range(40)]
    got = native_draw(flat.clone(), asked)
    assert got == sampler.draw(flat.clone(), asked)
    assert len(set(got)) > 30
    assert native_draw(peaked, asked) == [700] * 40


@pytest.mark.parametrize("gap", [5.0, 15.0, 21.0, 23.5, 30.0])
def test_far_from_the_best(level: str, gap: float) -> None:
    """A crowd far below the best: tokens that need nearly all the noise there is."""
    z = torch.full((20, 20000), -gap)
    z[:, 3] = 0.0
    asked = [drawn(i) for i in range(20)]
    assert native_draw(z.clone(), asked) == sampler.draw(z.clone(), asked)


def test_greedy_takes_the_first_of_equals(level: str) -> None:
    z = logits(4, 50, spread=1.0)
    z[0, [31, 12, 49]] = 9.0
    z[1, [0, 49]] = 9.0
    z[2] = 1.5
    z[3, :] = -INF
    z[3, 44] = -5.0
    cold = [drawn(i, temperature=t) for i, t in enumerate((0.0, 9e-6, 0.0, 0.0))]
    assert native_draw(z.clone(), cold) == [12, 0, 0, 44] == sampler.draw(z.clone(), cold)


def test_greedy_ignores_filters(level: str) -> None:
    z = logits(3, 40)
    cold = [drawn(i, temperature=0.0, top_k=1, top_p=0.1, min_p=0.5) for i in range(3)]
    assert native_draw(z.clone(), cold) == z.argmax(-1).tolist()


def test_equal_logits_are_cut_by_number(level: str) -> None:
    z = torch.zeros(1, 64)
    got = {native_draw(z.clone(), [drawn(seed, top_k=3)])[0] for seed in range(60)}
    assert got == {0, 1, 2}
    got = {native_draw(z.clone(), [drawn(seed, top_p=0.124)])[0] for seed in range(200)}
    assert got == set(range(8)), "an eighth of the mass is eight tokens of 64"


def test_forbidden_tokens_stay_forbidden(level: str) -> None:
    z = logits(200, 9)
    z[:, [0, 4, 8]] = -INF
    asked = [drawn(i, temperature=50.0) for i in range(200)]
    got = native_draw(z.clone(), asked)
    assert got == sampler.draw(z.clone(), asked)
    assert set(got) == {1, 2, 3, 5, 6, 7}


def test_mixed_rows(level: str) -> None:
    """Greedy, sampled and filtered rows side by side; more logits than draws."""
    z = logits(9, 333)
    asked = [
        drawn(
            i,
            position=i,
            temperature=(0.0, 1.0, 0.7)[i % 3],
            top_k=(0, 5)[i % 2],
            top_p=(1.0, 0.5)[i // 3 % 2],
        )
        for i in range(7)
    ]
    got = native_draw(z.clone(), asked)
    assert got == sampler.draw(z[:7].clone(), asked)
    assert got == [native_draw(z[i : i + 1].clone(), [asked[i]])[0] for i in range(7)]
    assert native_draw(z.clone(), []) == []


@pytest.mark.parametrize("filters", [{}, {"top_k": 6}, {"top_p": 0.85}, {"min_p": 0.1}], ids=str)
def test_distribution(level: str, filters: dict[str, float]) -> None:
    """Chi-square of 6000 draws against the softmax of what the filters leave."""
    z = logits(1, 12, spread=1.0)
    n = 6000
    got = native_draw(
        z.expand(n, 12).contiguous(), [drawn(i % 50, position=i // 50, **filters) for i in range(n)]
    )
    plain = drawn(0, **filters)
    kept = filter_logits(z, [plain.top_k], [plain.top_p], [plain.min_p])[0]
    want = kept.softmax(-1)
    counts = torch.bincount(torch.tensor(got), minlength=12)
    assert not counts[want == 0].any()
    here = want > 0
    assert (~here).any() == bool(filters)
    assert (
        stats.chisquare(
            counts[here].numpy(), (want[here].double() / want[here].double().sum() * n).numpy()
        ).pvalue
        > 1e-3
    )


@pytest.mark.parametrize("vocab", [1, 2, 300, 4096])
@pytest.mark.parametrize(
    "filters", [{}, {"top_k": 1}, {"top_k": 20}, {"top_p": 0.8}, {"min_p": 0.05}], ids=str
)
def test_the_same_confidence(level: str, vocab: int, filters: dict[str, float]) -> None:
    z = logits(12, vocab, seed=vocab)
    z[3] = z[3].round()  # equal ones
    asked = [
        drawn(seed=i, position=i, temperature=(0.0, 0.4, 1.0, 3.0)[i % 4], rows=1 + i % 2, **filters)
        for i in range(8)
    ]
    native, plain = [], []
    tokens = native_draw(z.clone(), asked, native)
    assert tokens == native_draw(z.clone(), asked) == sampler.draw(z.clone(), asked, plain)
    assert native == pytest.approx(plain, abs=1e-4)


@pytest.mark.parametrize("vocab", [1, 15, 64, 65, 2000])
@pytest.mark.parametrize("bad", [torch.nan, INF])
def test_there_is_no_choice_among_what_is_not_finite(level: str, vocab: int, bad: float) -> None:
    """A NaN or +infinity anywhere, or nothing but -infinity; the rows beside it choose as ever."""
    z = logits(9, vocab)
    z[1, 0] = z[3, vocab // 2] = z[5, vocab - 1] = bad
    z[6], z[7] = bad, -INF
    asked = [
        drawn(i, temperature=(0.0, 1.0, 0.7)[i % 3], top_k=(0, 5)[i % 2], top_p=(1.0, 0.9)[i // 2 % 2])
        for i in range(9)
    ]
    got = native_draw(z.clone(), asked)
    assert got == sampler.draw(z.clone(), asked)
    assert [i for i, token in enumerate(got) if token == NO_TOKEN] == [1, 3, 5, 6, 7]
    assert all(0 <= got[i] < vocab for i in (0, 2, 4, 8))


@pytest.mark.parametrize("temperature", [1e-5, 0.5])
def test_logits_that_their_temperature_makes_infinite(level: str, temperature: float) -> None:
    z = torch.tensor([[1.0, 3e38, -3e38, 2e38]])
    asked = [drawn(1, temperature=temperature)]
    assert native_draw(z.clone(), asked) == sampler.draw(z.clone(), asked) == [NO_TOKEN]
    assert native_draw(z.clone(), [drawn(1, temperature=1.0)]) == [1]
