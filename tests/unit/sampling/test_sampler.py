"""The one choice: greedy, filters, penalties along the path, and its distribution."""

import pytest
import torch
from scipy.stats import chisquare

from nextn.ops.base import NO_TOKEN
from nextn.request import SamplingParams
from nextn.sampling.choice import Choice, draw_params
from nextn.sampling.filters import filter_logits
from nextn.sampling.sampler import choose, draw, probabilities

V = 32


def choice(tokens=(1, 2), path=(), num_prompt=1, ends=frozenset(), **params):
    return Choice(SamplingParams(**params), list(tokens), list(path), num_prompt, ends)


def logits(seed=0, rows=1):
    return torch.randn(rows, V, generator=torch.Generator().manual_seed(seed)) * 2


def test_greedy_is_argmax_and_padding_rows_are_ignored():
    x = logits(rows=8)
    want = x[:3].argmax(-1).tolist()
    assert choose(x.clone(), [choice(temperature=0)] * 3) == want


@pytest.mark.parametrize("filters", [{}, {"top_p": 0.9}, {"top_k": 2}, {"min_p": 0.1}])
@pytest.mark.parametrize("temperature", [1e-6, 1e-30, 1e-38, 1e-45, 1e-300])
def test_next_to_no_temperature_is_greedy(temperature, filters):
    """Divided by it, logits are infinite or, as it is 0 in f32, not numbers."""
    for seed in range(5):
        x = logits(seed)
        assert choose(x.clone(), [choice(temperature=temperature, **filters)]) == x.argmax(-1).tolist()


def test_a_choice_does_not_depend_on_its_neighbours():
    x = logits(rows=6)
    cs = [
        choice(temperature=0),
        choice(seed=1),
        choice(seed=2, top_k=5, path=(4,)),
        choice(seed=3, top_p=0.7, temperature=0.5),
        choice(seed=4, min_p=0.2, repetition_penalty=1.3),
        choice(seed=5, frequency_penalty=0.5, presence_penalty=1.0, path=(3, 3)),
    ]
    together = choose(x.clone(), cs)
    alone = [choose(x[i : i + 1].clone(), [c])[0] for i, c in enumerate(cs)]
    assert together == alone


def test_path_counts_like_committed_tokens():
    """A choice after accepted drafts equals the plain choice at that position."""
    for seed in range(30):
        x = logits(seed)
        kind = {"seed": seed, "frequency_penalty": 1.0, "repetition_penalty": 1.5, "top_k": 8}
        a = choose(x.clone(), [choice(tokens=(1, 2, 9, 4), path=(), **kind)])
        b = choose(x.clone(), [choice(tokens=(1, 2), path=(9, 4), **kind)])
        assert a == b


def test_penalties_arithmetic():
    x = torch.zeros(1, V)
    x[0, 3], x[0, 4], x[0, 5] = 3.0, 2.5, -1.0
    got = x.clone()
    choose(got, [choice(tokens=(3, 5), path=(3,), num_prompt=1, temperature=0, repetition_penalty=2.0)])
    assert got[0, 3] == 1.5
    assert got[0, 5] == -2.0
    got = x.clone()
    # token 3 is in the prompt (not counted) and once on the path
    choose(
        got,
        [
            choice(
                tokens=(3, 5),
                path=(3,),
                num_prompt=1,
                temperature=0,
                frequency_penalty=0.5,
                presence_penalty=0.25,
            )
        ],
    )
    assert got[0, 3] == 3.0 - 0.75
    assert got[0, 5] == -1.75
    assert got[0, 4] == 2.5


def test_min_tokens_forbids_the_end():
    x = torch.zeros(1, V)
    x[0, 7] = 9.0
    ends = frozenset({7})
    assert choose(
        x.clone(), [choice(temperature=0, min_tokens=2, ends=ends, tokens=(1, 2), num_prompt=1)]
    ) != [7]
    assert choose(
        x.clone(), [choice(temperature=0, min_tokens=1, ends=ends, tokens=(1, 2), num_prompt=1)]
    ) == [7]
    # two outputs on the path: the minimum is reached there
    assert choose(
        x.clone(), [choice(temperature=0, min_tokens=2, ends=ends, tokens=(1, 2), path=(5,), num_prompt=1)]
    ) == [7]


def test_filters_keep_what_they_must():
    x = torch.tensor([[4.0, 3.0, 2.0, 1.0, 1.0, -5.0]])
    p = x.softmax(-1)[0]
    assert (filter_logits(x, [2], [1.0], [0.0]) > -1e30).sum() == 2
    kept = filter_logits(x, [-1], [float(p[0] + p[1]) - 1e-4], [0.0])[0] > -1e30
    assert kept.tolist() == [True, True, False, False, False, False]
    kept = filter_logits(x, [-1], [float(p[0] + p[1]) + 1e-4], [0.0])[0] > -1e30
    assert kept.tolist() == [True, True, True, False, False, False]
    kept = filter_logits(x, [-1], [1.0], [float(p[2] / p[0]) - 1e-4])[0] > -1e30
    assert kept.tolist() == [True, True, True, False, False, False]
    # equal logits: the smaller id ranks first; the best always stays
    kept = filter_logits(x, [4], [1.0], [0.0])[0] > -1e30
    assert kept.tolist() == [True, True, True, True, False, False]
    assert (filter_logits(x, [1], [1e-9], [1.0])[0] > -1e30).tolist() == [True] + [False] * 5


@pytest.mark.parametrize(
    "params", [{}, {"temperature": 0.6}, {"top_k": 6}, {"top_p": 0.8}, {"min_p": 0.1, "temperature": 1.5}]
)
def test_distribution_over_seeds(params):
    """Chi-square of what 4,000 seeds choose against the filtered softmax."""
    n = 4000
    x = logits(3)
    cs = [choice(seed=s * 7919 + 1, **params) for s in range(n)]
    got = torch.bincount(torch.tensor(choose(x.expand(n, -1).clone(), cs)), minlength=V).double()
    p = SamplingParams(**params)
    want = filter_logits(x / p.temperature, [p.top_k], [p.top_p], [p.min_p])[0].double().softmax(-1) * n
    assert got[want == 0].sum() == 0
    big = want >= 5
    observed, expected = got[big].tolist(), want[big].tolist()
    rest = want[~big].sum().item()
    if rest >= 5:
        observed.append(got[~big].sum().item())
        expected.append(rest)
    else:
        expected = (torch.tensor(expected) * (sum(observed) / sum(expected))).tolist()
    assert chisquare(observed, expected).pvalue > 1e-3


@pytest.mark.parametrize("params", [{}, {"temperature": 0.6, "top_k": 6}, {"top_p": 0.8}, {"temperature": 0}])
def test_probabilities_are_those_of_the_draw(params):
    n = 300
    x = logits(5)
    cs = [choice(seed=s, **params) for s in range(n)]
    p = probabilities(x.expand(n, -1).clone(), cs)
    assert (p == p[0]).all()
    torch.testing.assert_close(p.sum(-1), torch.ones(n))
    chosen = torch.tensor(choose(x.expand(n, -1).clone(), cs)).bincount(minlength=V)
    assert (p[0][chosen > 0] > 0).all()
    # Most likely first, give or take what chance does to 300 draws.
    assert chosen[p[0] > 0.2].sum() >= (p[0][p[0] > 0.2].sum() - 0.1) * n
    if params.get("temperature") == 0:
        assert p[0, x[0].argmax()] == 1


def test_probabilities_do_not_depend_on_their_neighbours():
    x = logits(rows=5)
    cs = [
        choice(temperature=0),
        choice(top_k=3),
        choice(temperature=0.3, top_p=0.9),
        choice(temperature=1e-30),
    ]
    together = probabilities(x.clone(), cs)
    for i, c in enumerate(cs):
        assert torch.equal(together[i : i + 1], probabilities(x[i : i + 1].clone(), [c]))
    assert torch.equal(together[3], torch.eye(V)[x[3].argmax()])


def confident(x, *params):
    found = []
    tokens = draw(x.clone(), [draw_params(SamplingParams(**p), 3) for p in params], found)
    assert tokens == draw(x.clone(), [draw_params(SamplingParams(**p), 3) for p in params])
    return found


def test_a_greedy_choice_leads_by_the_distance_to_the_next_logit():
    x = logits(rows=3)
    x[1, 4] = x[1, 9] = 20.0
    x[2] = float("-inf")
    x[2, 7] = 1.0
    first, second = x[0].topk(2).values.tolist()
    assert confident(x, *[{"temperature": 0}] * 3) == [pytest.approx(first - second), 0.0, float("inf")]


def test_a_drawn_choice_leads_by_what_would_have_to_be_added_to_change_it():
    """In logits, so times the temperature; noise included."""
    for seed in range(20):
        kind = {"seed": seed, "temperature": 0.6}
        x = logits(seed)
        (lead,) = confident(x, kind)
        token = draw(x.clone(), [draw_params(SamplingParams(**kind), 3)])[0]
        for by, same in ((lead - 1e-4, True), (lead + 1e-4, False)):
            less = x.clone()
            less[0, token] -= by
            assert (draw(less, [draw_params(SamplingParams(**kind), 3)]) == [token]) == same


def test_a_choice_that_filters_leave_alone_is_certain():
    assert confident(logits(), {"seed": 1, "top_k": 1}) == [float("inf")]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_no_numbers_raise_nothing(value, temperature):
    for some in (slice(0, V), slice(0, V, 3), slice(5, 6)):
        x = logits()
        x[0, some] = value
        found = []
        (token,) = draw(x, [draw_params(SamplingParams(seed=1, temperature=temperature), 3)], found)
        assert NO_TOKEN <= token < V
        assert len(found) == 1


def test_a_draw_is_the_same_with_its_confidence() -> None:
    """To find the runner-up, the best logit may be written over."""
    logits = torch.randn(3, 50, generator=torch.Generator().manual_seed(1))
    draws = [draw_params(SamplingParams(temperature=t, seed=3), 5, 1) for t in (0.0, 0.7, 1.0)]
    confidence: list[float] = []
    tokens = draw(logits.clone(), draws, confidence)
    assert tokens == draw(logits.clone(), draws)
    assert min(tokens) >= 0
    assert len(confidence) == 3
    assert min(confidence) > 0.0
