"""Seeded sampling has the target's distribution, with drafts and without: chi-square over many seeds."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import torch
from parity.engine_steps import make_engine, run
from parity.oracle import load_oracle, random_checkpoint
from scipy import stats
from support.checkpoints import write_checkpoint
from torch import Tensor

from nextn.request import SamplingParams

VOCAB = 16
PROMPT = [3, 14, 15, 9, 2]
DEPTH = 3  # tokens looked at together
SAMPLES = 4000
LEAST = 1e-3  # p-value; the seeds are fixed, so a test passes always or never


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Tensor]:
    """A small model's folder; its logits after PROMPT and after each token of every pair: [V, V, 3, V]."""
    sizes = {"vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 2}
    config, tensors = random_checkpoint(sizes, seed=12)
    folder = write_checkpoint(tmp_path_factory.mktemp("distribution"), config, tensors)
    pairs = torch.cartesian_prod(torch.arange(VOCAB), torch.arange(VOCAB))
    rows = torch.cat((torch.tensor(PROMPT).expand(len(pairs), -1), pairs), 1)
    with torch.no_grad():
        logits = load_oracle(folder)(rows, use_cache=False).logits[:, -DEPTH:]
    return folder, logits.view(VOCAB, VOCAB, DEPTH, VOCAB)


def joint(logits: Tensor, temperature: float) -> Tensor:
    """Probability of the first three tokens: [VOCAB, VOCAB, VOCAB] f64."""
    p = (logits.double() / temperature).softmax(-1)
    first, second, third = p[0, 0, 0], p[:, 0, 1], p[:, :, 2]
    return first[:, None, None] * second[:, :, None] * third


def p_value(counts: Tensor, probs: Tensor) -> float:
    """Chi-square of counts against probs, both flat; cells are joined until 8 are expected in each."""
    total = int(counts.sum())
    seen, expected = [0], [0.0]
    for i in probs.argsort().tolist():
        seen[-1] += int(counts[i])
        expected[-1] += float(probs[i]) * total
        if expected[-1] >= 8:
            seen.append(0)
            expected.append(0.0)
    seen[-2:], expected[-2:] = [sum(seen[-2:])], [sum(expected[-2:])]
    assert len(seen) > 3
    return float(stats.chisquare(seen, expected).pvalue)


def sample(folder: Path, num_drafts: int, temperature: float, params: list[SamplingParams]) -> Tensor:
    """How often each three tokens were drawn: [VOCAB, VOCAB, VOCAB]."""
    engine = make_engine(
        folder, num_drafts, chunked_prefill_size=512, max_running_requests=96, kv_cache_tokens=4096,
        check_integrity=False,
    )  # fmt: skip
    counts: Counter[int] = Counter()
    accepted = 0
    work = {str(i): (PROMPT, p.replace(temperature=temperature)) for i, p in enumerate(params)}
    for trace in run(engine, work).values():
        a, b, c = trace.tokens[len(PROMPT) :][:DEPTH]
        counts[(a * VOCAB + b) * VOCAB + c] += 1
        accepted += sum(s.accepted for s in trace.steps)
    assert (accepted > len(params) // 10) == (num_drafts > 0)  # drafts had a part in it
    return torch.tensor([counts[i] for i in range(VOCAB**DEPTH)]).view(VOCAB, VOCAB, VOCAB)


def requests(seeds: range | None) -> list[SamplingParams]:
    """One request a seed, or all of one seed and a stream each."""
    base = SamplingParams(max_tokens=DEPTH + 1, ignore_eos=True)
    if seeds is None:
        return [base.replace(seed=77, stream=i) for i in range(SAMPLES)]
    return [base.replace(seed=i) for i in seeds]


@pytest.mark.parametrize(
    ("num_drafts", "temperature", "seeds"),
    [
        (0, 1.0, range(SAMPLES)),
        (2, 1.0, range(SAMPLES, 2 * SAMPLES)),
        (2, 0.6, range(2**40, 2**40 + SAMPLES)),
        (2, 1.0, None),
    ],
    ids=["no drafts", "drafts", "drafts, T=0.6", "drafts, streams of one seed"],
)
def test_sampled_tokens_follow_the_softmax(
    checkpoint: tuple[Path, Tensor], num_drafts: int, temperature: float, seeds: range | None
) -> None:
    folder, logits = checkpoint
    probs = joint(logits, temperature)
    counts = sample(folder, num_drafts, temperature, requests(seeds))
    assert p_value(counts.flatten(), probs.flatten()) > LEAST  # all three together
    assert p_value(counts.sum((1, 2)), probs.sum((1, 2))) > LEAST  # and one by one
    assert p_value(counts.sum((0, 2)), probs.sum((0, 2))) > LEAST
    assert p_value(counts.sum((0, 1)), probs.sum((0, 1))) > LEAST
    other = joint(logits, 1.2 * temperature)
    assert p_value(counts.flatten(), other.flatten()) < LEAST  # enough samples to tell another softmax
