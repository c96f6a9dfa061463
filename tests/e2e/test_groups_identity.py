"""The identity matrix of engines that share their experts, on the embedded model: texts, log-probabilities
and acceptance are those of one device, whoever has an expert and whatever the others compute.

A case is a world (groups of attention, ranks of each, shards of the experts), one way to draft and one way to
schedule. Each group is given a list of requests of its own, which one engine on one device is given, too;
some groups are given none. (Four groups: test_groups_fuzz.py.)
"""

from __future__ import annotations

import functools
import random
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from support.groups import AnyTime, AtOnce, Found, Groups, Job, config
from support.native_kernels import built_levels
from support.nodes import free_address, ranks_of_other_nodes

from nextn.bench.prompts import heldout_prompts
from nextn.config import EMBEDDED, model_folder
from nextn.engine import build
from nextn.request import SamplingParams, SpeculativeParams
from nextn.scheduler.prompt_budget import PromptBudget
from nextn.tokenizer.tokenizer import Tokenizer

pytestmark = pytest.mark.skipif(not built_levels(), reason="no native kernels")

CONTEXT = 128
SCHEDULES: dict[str, dict[str, Any]] = {
    "whole": {},
    "chunks": {"chunked_prefill_size": 16, "max_running_requests": 4},
    "retracted": {"kv_cache_tokens": 320, "page_size": 4},
}
DRAFTS: dict[str, dict[str, Any]] = {
    "auto": {},
    "chain": {"speculative_num_steps": 2},
    "tree": {"speculative_num_steps": 3, "speculative_eagle_topk": 2, "speculative_num_draft_tokens": 6},
    "fp8 rows": {"ep_dispatch_dtype": "fp8", "speculative_num_steps": 2},
    "fp8 rows, off": {"ep_dispatch_dtype": "fp8", "speculative_num_steps": 0},
}

# Groups, ranks of each, shards; drafts; schedule.
CASES = [
    (2, 1, 1, "chain", "whole"), (2, 1, 2, "tree", "retracted"),
]  # fmt: skip


@functools.cache
def texts() -> list[list[int]]:
    tokenizer = Tokenizer.from_folder(model_folder(EMBEDDED))
    return [tokenizer.encode(text) for text in heldout_prompts(12)]


def jobs(group: int) -> list[Job]:
    """Greedy and seeded, with drafts and without, with log-probabilities; one that goes on to the end of the
    context, two that are only read."""
    rng = random.Random(group)
    found = []
    for i, n in enumerate((70, 41, 16, 97, 55)):
        speculative = SpeculativeParams(num_steps=0) if i == 3 else SpeculativeParams()
        params = SamplingParams(
            max_tokens=20, temperature=i % 2, seed=i, ignore_eos=True, speculative=speculative,
            logprobs=2 if i < 2 else None,
        )  # fmt: skip
        found.append((n, params))
    found[2] = found[2][0], found[2][1].replace(max_tokens=1000)
    found += [(45, SamplingParams(max_tokens=0)), (33, SamplingParams(max_tokens=1, temperature=0))]
    return [
        Job(f"{group}.{i}", rng.choice(texts())[group : group + n], params)
        for i, (n, params) in enumerate(found)
    ]


def longer(given: list[Job]) -> list[Job]:
    """The same and then something else: what was read before is found again."""
    return [Job(job.rid, [*job.tokens, 7, 11], job.params) for job in given[:5]]


@pytest.fixture(scope="module", autouse=True)
def prompts_by_tokens() -> Iterator[None]:
    """What steps take would make schedules differ, and with them retractions."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "_prompts", lambda config, *_: PromptBudget(config.chunked_prefill_size))
        yield


@pytest.fixture(scope="module")
def alone() -> Any:
    """What one device says to each group's jobs, and then to the longer ones."""

    @functools.cache
    def found(drafts: str, schedule: str, group: int) -> list[Found]:
        with Groups(options(1, 1, 1, drafts, schedule)) as one:
            small, given = schedule == "retracted", jobs(group)
            return [one.serve([AtOnce(some)], small)[0] for some in (given, longer(given))]

    return found


def options(groups: int, each: int, shards: int, drafts: str, schedule: str, **more: Any) -> Any:
    given: Mapping[str, Any] = {**DRAFTS[drafts], **SCHEDULES[schedule], **more}
    return config(groups, each, shards, context_length=CONTEXT, check_integrity=True, **given)


def check(found: Found, wanted: Found, acceptance: bool) -> None:
    assert found.answers.keys() == wanted.answers.keys()
    for rid, answer in found.answers.items():
        assert answer.text == wanted.answers[rid].text, rid
    if acceptance:
        for rid, answer in found.answers.items():
            assert answer.spec == wanted.answers[rid].spec, rid
        assert found.retracted == wanted.retracted


@pytest.mark.parametrize(("groups", "each", "shards", "drafts", "schedule"), CASES)
def test_as_on_one_device(
    alone: Any, groups: int, each: int, shards: int, drafts: str, schedule: str
) -> None:
    compare(alone, options(groups, each, shards, drafts, schedule), drafts, schedule)


def on_nodes(
    alone: Any, groups: int, each: int, shards: int, drafts: str, schedule: str, wanted: str, **more: Any
) -> None:
    """wanted: the drafts of one device. more: options."""
    given = options(groups, each, shards, drafts, schedule, dist_init_addr=free_address(), **more)
    with ranks_of_other_nodes(given):
        compare(alone, given, wanted, schedule, fixed=wanted == drafts and drafts != "auto")


def test_each_group_on_two_nodes(alone: Any) -> None:
    """Whether `auto` drafts is a matter of speed."""
    on_nodes(alone, 2, 2, 4, "auto", "chunks", "auto", nnodes=4, overlap_schedule="on")


def test_a_group_on_each_node(alone: Any) -> None:
    """Spare experts, which move; steps in two halves; rows in fp8. With drafts, the texts of one device
    without drafts. bf16 has others."""
    more = {"ep_num_redundant_experts": 2, "enable_eplb": True, "eplb_rebalance_num_iterations": 4}
    more |= {"nnodes": 2, "enable_two_batch_overlap": True}
    on_nodes(alone, 2, 1, 2, "fp8 rows", "chunks", "fp8 rows, off", **more)
    (fp8, _), (bf16, _) = alone("fp8 rows, off", "chunks", 0), alone("auto", "chunks", 0)
    assert {rid: a.text for rid, a in fp8.answers.items()} != {rid: a.text for rid, a in bf16.answers.items()}


def compare(alone: Any, given: Any, drafts: str, schedule: str, fixed: bool = True) -> None:
    """Texts and acceptance of all groups with those of one device. fixed: is acceptance the same?"""
    groups = given.groups
    wanted = [alone(drafts, schedule, group) for group in range(groups)]
    small = schedule == "retracted"
    with Groups(given) as engines:
        work = [jobs(group) for group in range(groups)]
        for group, found in enumerate(engines.serve([AtOnce(each) for each in work], small)):
            check(found, wanted[group][0], fixed)
            assert (found.retracted > 1) == small
        # All sleep now. Some have nothing to do in the next steps.
        busy = [group % 2 == 1 or groups == 1 for group in range(groups)]
        again = [longer(each) if works else [] for each, works in zip(work, busy, strict=True)]
        for group, found in enumerate(engines.serve(list(map(AtOnce, again)), small)):
            if busy[group]:
                check(found, wanted[group][1], fixed)
                assert small or any(a.cached for a in found.answers.values())
            else:
                assert found.steps > 0
        if schedule == "whole":
            return
        # Whenever they come, and whoever is aborted beside them.
        gone = [[Job(f"x{job.rid}", job.tokens, job.params) for job in each[:3]] for each in work]
        players = [AnyTime(*pair, seed=group) for group, pair in enumerate(zip(work, gone, strict=True))]
        for group, found in enumerate(engines.serve(players, small)):
            for rid, answer in wanted[group][0].answers.items():
                assert found.answers[rid].text == answer.text, rid
