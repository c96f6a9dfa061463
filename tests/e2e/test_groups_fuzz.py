"""Steps of engines that share their experts, of prompts, drafts, aborts and retractions in any mixture, with
groups that have nothing to do or only read prompts: nobody waits for ever, and every text is that of one
engine. Fourteen hundred steps; `make test-all` makes ten thousand, in more worlds.

NEXTN_FUZZ_STEPS: how many instead.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.all_cases import ALL_CASES, few_or_all
from support.checkpoints import random_tensors, tiny_config, write_checkpoint
from support.groups import AnyTime, AtOnce, Found, Groups, Job, config
from support.native_kernels import built_levels
from support.played_depth import play_depth
from support.watched_steps import Watches

from nextn.families.config import ModelConfig
from nextn.models.names import expected_tensors
from nextn.request import SamplingParams, SpeculativeParams

pytestmark = pytest.mark.skipif(not built_levels(), reason="no native kernels")

STEPS = int(os.environ.get("NEXTN_FUZZ_STEPS", "10000" if ALL_CASES else "1400"))
OPTIONS: dict[str, Any] = {
    "kv_cache_tokens": 256, "page_size": 4, "chunked_prefill_size": 32, "max_running_requests": 6,
}  # fmt: skip
CHAINS = {"speculative_num_steps": 2}
TREES = {"speculative_num_steps": 2, "speculative_eagle_topk": 2, "speculative_num_draft_tokens": 5}
AHEAD = {"overlap_schedule": "on"}
MOVING = {"enable_eplb": True, "eplb_rebalance_num_iterations": 3, "ep_num_redundant_experts": 4}
HALVES = {"enable_two_batch_overlap": True}
# Groups, ranks of each, shards, options. Without an option for drafts, their depth is automatic.
WORLDS: list[tuple[int, int, int, dict[str, Any]]] = few_or_all(
    [
        (2, 1, 2, {**AHEAD, **MOVING}),
        (3, 1, 1, {**TREES, **HALVES}),
        (4, 1, 4, {**CHAINS, **MOVING, **HALVES}),
        (4, 1, 2, {**TREES, **AHEAD}),
    ],
    [(2, 2, 2, {**AHEAD, **MOVING, **HALVES}), (2, 2, 4, TREES)],
)


@pytest.fixture(scope="module", autouse=True)
def without_measuring() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        play_depth(patch)
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # Wide enough for three slices, and for two ranks in a group.
    given = tiny_config(hidden_size=192, moe_intermediate_size=96, vocab_size=128)
    shapes = expected_tensors(ModelConfig.from_dict(given), 1)
    return write_checkpoint(tmp_path_factory.mktemp("tiny") / "model", given, random_tensors(shapes, seed=3))


def jobs(rng: random.Random, name: str, count: int, reads: bool = False) -> list[Job]:
    """Prompts that often begin alike, so that beginnings are found again. reads: nothing is generated after
    the prompt, or only its first token."""
    common = [rng.randrange(2, 128) for _ in range(40)]
    found = []
    for i in range(count):
        own = [rng.randrange(2, 128) for _ in range(rng.choice([40, 90, 150] if reads else [1, 3, 20, 60]))]
        params = SamplingParams(
            max_tokens=rng.choice([0, 1] if reads else [0, 1, 2, 9, 30]), temperature=rng.choice([0, 1]),
            seed=i, ignore_eos=True, speculative=SpeculativeParams(num_steps=rng.choice([0, None, None])),
        )  # fmt: skip
        found.append(Job(f"{name}{i}", [*common[: rng.choice([0, 0, 17, 40])], *own], params))
    return found


def verified(found: Found) -> int:
    """Number of drafts that were verified."""
    return sum(sum(answer.spec.proposed) for answer in found.answers.values() if answer.spec is not None)


@pytest.mark.parametrize(("groups", "each", "shards", "more"), WORLDS)
def test_mixtures(
    folder: Path, watches: Watches, groups: int, each: int, shards: int, more: dict[str, Any]
) -> None:
    rng = random.Random(groups * 10 + each * 3 + shards)
    options = {**OPTIONS, **more, "model_path": str(folder)}
    plain = {**OPTIONS, "speculative_num_steps": 0, "model_path": str(folder)}
    steps = rounds = retracted = idle = only_read = 0
    watches.clear()
    with Groups(config(1, 1, 1, **plain)) as one, Groups(config(groups, each, shards, **options)) as engines:
        while steps < STEPS // len(WORLDS):
            rounds += 1
            reads = [rng.random() < 0.2 for _ in range(groups)]
            given = [jobs(rng, f"{i}.", rng.choice([3, 6] if some else [0, 3, 12]), some)
                     for i, some in enumerate(reads)]  # fmt: skip
            gone = [jobs(rng, f"x{i}.", rng.choice([0, 2]), some) for i, some in enumerate(reads)]
            pauses = [rng.choice([0, 5, 40]) for _ in range(groups)]
            players = [
                AnyTime(*its[:2], seed=rounds, pause=its[2]) for its in zip(given, gone, pauses, strict=True)
            ]
            found = engines.serve(players, retracts=rounds % 2 == 0)
            [wanted] = one.serve([AtOnce([job for its in given for job in its])])
            for its, some in zip(found, given, strict=True):
                for job in some:
                    assert its.answers[job.rid].text == wanted.answers[job.rid].text, (rounds, job.rid)
            steps += max(its.steps for its in found)
            retracted += sum(its.retracted for its in found)
            idle += sum(its.idle for its in found)
            drafts = sum(map(verified, found))
            only_read += drafts > 0 and any(reads)
    print(f"{steps} steps in {rounds} rounds, {retracted} retracted, {idle} without work")
    assert retracted > 0
    assert idle > 0
    assert only_read > 0, "no group only read prompts while another one verified drafts"
    watches.check(groups * each, halves="enable_two_batch_overlap" in more, moves="enable_eplb" in more)
