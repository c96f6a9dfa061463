"""Two thousand steps of engines that share their experts, of prompts, drafts, aborts and retractions in any
mixture, with groups that have nothing to do: nobody waits for ever, and every text is that of one engine.

NEXTN_FUZZ_STEPS: how many instead.
"""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest
from support.checkpoints import random_tensors, tiny_config, write_checkpoint
from support.groups import AnyTime, AtOnce, Groups, Job, config
from support.native_kernels import built_levels

from nextn.families.config import ModelConfig
from nextn.models.names import expected_tensors
from nextn.request import SamplingParams, SpeculativeParams

pytestmark = pytest.mark.skipif(not built_levels(), reason="no native kernels")

STEPS = int(os.environ.get("NEXTN_FUZZ_STEPS", "2000"))
OPTIONS: dict[str, Any] = {
    "kv_cache_tokens": 256, "page_size": 4, "chunked_prefill_size": 32, "max_running_requests": 6,
    "speculative_num_steps": 2,
}  # fmt: skip
TREES = {"speculative_num_steps": 2, "speculative_eagle_topk": 2, "speculative_num_draft_tokens": 5}
AHEAD = {"overlap_schedule": "on"}
WORLDS: list[tuple[int, int, dict[str, Any]]] = [
    (2, 2, AHEAD), (3, 1, TREES), (4, 4, {}), (4, 2, {**TREES, **AHEAD}),
]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    given = tiny_config(hidden_size=192, moe_intermediate_size=96)  # wide enough for three slices
    shapes = expected_tensors(ModelConfig.from_dict(given), 1)
    return write_checkpoint(tmp_path_factory.mktemp("tiny") / "model", given, random_tensors(shapes, seed=3))


def jobs(rng: random.Random, name: str, count: int) -> list[Job]:
    """Prompts that often begin alike, so that beginnings are found again."""
    common = [rng.randrange(2, 48) for _ in range(40)]
    found = []
    for i in range(count):
        own = [rng.randrange(2, 48) for _ in range(rng.choice([1, 3, 20, 60]))]
        params = SamplingParams(
            max_tokens=rng.choice([0, 1, 2, 9, 30]), temperature=rng.choice([0, 1]), seed=i, ignore_eos=True,
            speculative=SpeculativeParams(num_steps=rng.choice([0, None, None])),
        )  # fmt: skip
        found.append(Job(f"{name}{i}", [*common[: rng.choice([0, 0, 17, 40])], *own], params))
    return found


@pytest.mark.parametrize(("groups", "shards", "drafts"), WORLDS)
def test_mixtures(folder: Path, groups: int, shards: int, drafts: dict[str, Any]) -> None:
    rng = random.Random(groups * 10 + shards)
    options = {**OPTIONS, **drafts, "model_path": str(folder)}
    steps = rounds = retracted = idle = 0
    with Groups(config(1, 1, 1, **options)) as one, Groups(config(groups, 1, shards, **options)) as engines:
        while steps < STEPS // len(WORLDS):
            rounds += 1
            given = [jobs(rng, f"{group}.", rng.choice([0, 3, 12])) for group in range(groups)]
            gone = [jobs(rng, f"x{group}.", rng.choice([0, 2])) for group in range(groups)]
            pauses = [rng.choice([0, 5, 40]) for _ in range(groups)]
            players = [
                AnyTime(*each[:2], seed=rounds, pause=each[2])
                for each in zip(given, gone, pauses, strict=True)
            ]
            found = engines.serve(players, retracts=rounds % 2 == 0)
            [wanted] = one.serve([AtOnce([job for each in given for job in each])])
            for each, some in zip(found, given, strict=True):
                for job in some:
                    assert each.answers[job.rid].text == wanted.answers[job.rid].text, (rounds, job.rid)
            steps += max(each.steps for each in found)
            retracted += sum(each.retracted for each in found)
            idle += sum(each.idle for each in found)
    print(f"{steps} steps in {rounds} rounds, {retracted} retracted, {idle} without work")
    assert retracted > 0
    assert idle > 0
