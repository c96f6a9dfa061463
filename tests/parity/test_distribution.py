"""Seeded sampling has the target's distribution, with drafts and without, in every lossless verify mode:
chi-square over many seeds."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import torch
from parity.engine_steps import make_engine
from parity.oracle import load_oracle, random_checkpoint
from support.all_cases import few_or_all
from support.checkpoints import write_checkpoint
from support.small_distributions import p_value
from torch import Tensor

from nextn.request import Request, SamplingParams, SpeculativeParams

VOCAB = 16
PROMPT = [3, 14, 15, 9, 2]
DEPTH = 3  # tokens looked at together
SAMPLES = 2500
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


def sample(
    folder: Path, num_drafts: int, temperature: float, params: list[SamplingParams], **options: object
) -> Tensor:
    """How often each three tokens were drawn: [VOCAB, VOCAB, VOCAB]."""
    engine = make_engine(
        folder, num_drafts, chunked_prefill_size=512, max_running_requests=96, kv_cache_tokens=8192,
        check_integrity=False, **options,
    )  # fmt: skip
    counts: Counter[int] = Counter()
    accepted = 0
    texts: dict[str, list[int]] = {str(i): [] for i in range(len(params))}
    for rid, p in zip(texts, params, strict=True):
        engine.add(Request(rid, list(PROMPT), p.replace(temperature=temperature)))
    while engine.has_work():
        for out in engine.step():
            texts[out.rid] += out.tokens
            if len(texts[out.rid]) >= DEPTH and out.finish_reason is None:
                engine.abort(out.rid)
            accepted += sum(depth > 0 for depth in out.drafted)
    for a, b, c, *_ in texts.values():
        counts[(a * VOCAB + b) * VOCAB + c] += 1
    assert (accepted > len(params) // 10) == (num_drafts > 0)  # drafts had a part in it
    return torch.tensor([counts[i] for i in range(VOCAB**DEPTH)]).view(VOCAB, VOCAB, VOCAB)


def requests(seeds: range, streams: int = 0, beyond: int = 1) -> list[SamplingParams]:
    """One request a seed, and `streams` of one other seed."""
    base = SamplingParams(max_tokens=DEPTH + beyond, ignore_eos=True)
    return [base.replace(seed=i) for i in seeds] + [base.replace(seed=77, stream=i) for i in range(streams)]


@pytest.mark.parametrize(
    ("num_drafts", "temperature", "streams"),
    [
        (2, 0.6, SAMPLES // 2),
        # The texts with drafts are those without.
        *few_or_all([], [(2, 0.6, 0), (2, 1.0, SAMPLES), (0, 1.0, 0)]),
    ],
)
def test_sampled_tokens_follow_the_softmax(
    checkpoint: tuple[Path, Tensor], num_drafts: int, temperature: float, streams: int
) -> None:
    """Numbers of all seeds, and of all streams of a seed, are independent."""
    folder, logits = checkpoint
    params = requests(range(2**40, 2**40 + SAMPLES - streams), streams)
    check(sample(folder, num_drafts, temperature, params), logits, temperature)


MODES = {
    "rejection": (SpeculativeParams(verify="rejection"), {}),
    "block": (SpeculativeParams(verify="block"), {}),
    "typical, trees": (SpeculativeParams(verify="typical"), {"speculative_eagle_topk": 2}),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "temperature"), few_or_all([("block", 0.6), ("typical, trees", 1.0)], [("rejection", 1.0)])
)
def test_modes_that_weigh_probabilities(
    checkpoint: tuple[Path, Tensor], mode: str, temperature: float
) -> None:
    """Three drafts a step: the third token often comes from the step after the one that turned its draft
    down, so numbers that are used twice would show. The temperature has been applied before any mode sees
    the probabilities, so one is enough for each; the modes alone, on probabilities of all kinds, are in
    tests/unit/speculative/verify/test_lossless.py."""
    folder, logits = checkpoint
    asked, options = MODES[mode]
    params = [p.replace(speculative=asked) for p in requests(range(7 * SAMPLES, 8 * SAMPLES), beyond=3)]
    check(sample(folder, 3, temperature, params, **options), logits, temperature)


def check(counts: Tensor, logits: Tensor, temperature: float) -> None:
    probs = joint(logits, temperature)
    assert p_value(counts.flatten(), probs.flatten()) > LEAST  # all three together
    assert p_value(counts.sum((1, 2)), probs.sum((1, 2))) > LEAST  # and one by one
    assert p_value(counts.sum((0, 2)), probs.sum((0, 2))) > LEAST
    assert p_value(counts.sum((0, 1)), probs.sum((0, 1))) > LEAST
    other = joint(logits, 1.2 * temperature)
    assert p_value(counts.flatten(), other.flatten()) < LEAST  # enough samples to tell another softmax
