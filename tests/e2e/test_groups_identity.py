"""The identity matrix of engines that share their experts, on the embedded model: texts, log-probabilities
and acceptance are those of one device, whoever has an expert and whatever the others compute.

A case is a world, one way to draft, one way to schedule, and perhaps experts that move and steps in two
halves. Each group is given a list of requests of its own, greedy and seeded ones, which one engine on one
device is given, too; some groups are given none. `make test` has few cases, `make test-all` every world with
every way to draft. (Any mixture of steps: test_groups_fuzz.py.)
"""

from __future__ import annotations

import functools
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pytest
from support.all_cases import ALL_CASES, few_or_all
from support.groups import AnyTime, AtOnce, Found, Groups, Job, config
from support.native_kernels import built_levels
from support.nodes import free_address, ranks_of_other_nodes
from support.played_depth import play_depth
from support.watched_steps import Watches

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
    "off": {"speculative_num_steps": 0},
    "auto": {},
    "auto, ahead": {"overlap_schedule": "on"},  # what it decides about drafts applies a step later
    "tree": {"speculative_num_steps": 3, "speculative_eagle_topk": 2, "speculative_num_draft_tokens": 6},
    "fp8 rows": {"ep_dispatch_dtype": "fp8", "speculative_num_steps": 2},
    "fp8 rows, off": {"ep_dispatch_dtype": "fp8", "speculative_num_steps": 0},
}


class World(NamedTuple):
    """Groups of attention, ranks of each, shards of the experts."""

    groups: int
    each: int
    shards: int

    @property
    def fits(self) -> bool:
        """Whether it is more than one device, and has at most four ranks in a shard: the embedded model's
        experts have four slices."""
        return self.size > 1 and self.size % self.shards == 0 and self.size // self.shards <= 4

    @property
    def size(self) -> int:
        return self.groups * self.each


class Case(NamedTuple):
    """spare: every third step experts move, with so many redundant ones, and steps run in two halves; None:
    neither."""

    world: World
    drafts: str
    schedule: str
    spare: int | None = None


WORLDS = [World(g, t, e) for g in (1, 2, 4) for t in (1, 2) for e in (1, 2, 4) if World(g, t, e).fits]
FEW = [
    Case(World(4, 1, 4), "tree", "retracted", spare=0),
    Case(World(4, 1, 1), "auto", "chunks"),
    Case(World(4, 2, 2), "off", "whole"),
    Case(World(2, 2, 1), "tree", "retracted"),
]
MATRIX = [
    Case(world, drafts, list(SCHEDULES)[(i + j) % 3])
    for i, world in enumerate(WORLDS)
    for j, drafts in enumerate(("off", "auto", "tree"))
]
MOVING = [
    Case(World(*world), drafts, schedule, spare)
    for world, drafts, schedule in (
        ((1, 2, 2), "tree", "chunks"), ((2, 1, 2), "auto", "retracted"), ((4, 1, 4), "tree", "whole"),
        ((4, 2, 2), "auto", "chunks"),
    )
    for spare in (0, 2, 8) if (8 + spare) % world[2] == 0
]  # fmt: skip
CASES = few_or_all(FEW, [case for case in (*MATRIX, *MOVING) if case not in FEW])


def moving(spare: int) -> dict[str, Any]:
    """Experts that move every third step, and halves."""
    return {
        "ep_num_redundant_experts": spare, "enable_eplb": True, "eplb_rebalance_num_iterations": 3,
        "enable_two_batch_overlap": True,
    }  # fmt: skip


@functools.cache
def texts() -> list[list[int]]:
    tokenizer = Tokenizer.from_folder(model_folder(EMBEDDED))
    return [tokenizer.encode(text) for text in heldout_prompts(12)]


def jobs(group: int) -> list[Job]:
    """Greedy and seeded, with drafts and without, with log-probabilities; one that goes on to the end of the
    context, two that are only read."""
    rng = random.Random(group)
    found = []
    for i, n in enumerate((70, 41, 90, 97, 55)):
        speculative = SpeculativeParams(num_steps=0) if i == 3 else SpeculativeParams()
        params = SamplingParams(
            max_tokens=14, temperature=i % 2, seed=i, ignore_eos=True, speculative=speculative,
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
def without_clocks() -> Iterator[None]:
    """What steps take would make schedules differ, and with them drafts and retractions."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "_prompts", lambda config, *_: PromptBudget(config.chunked_prefill_size))
        play_depth(patch)
        yield


@pytest.fixture(scope="module")
def alone() -> Any:
    """What one device says to each group's jobs, and then, of every second group, to the longer ones."""

    @functools.cache
    def found(drafts: str, schedule: str, group: int) -> list[Found]:
        with Groups(options(World(1, 1, 1), drafts, schedule)) as one:
            small, given = schedule == "retracted", jobs(group)
            return [one.serve([AtOnce(some)], small)[0] for some in (given, longer(given))[: 1 + group % 2]]

    return found


def options(world: World, drafts: str, schedule: str, **more: Any) -> Any:
    given: Mapping[str, Any] = {**DRAFTS[drafts], **SCHEDULES[schedule], **more}
    return config(*world, context_length=CONTEXT, check_integrity=True, **given)


def accepted(found: Found) -> int:
    return sum(sum(answer.spec.accepted) for answer in found.answers.values() if answer.spec is not None)


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, (*case.world, *case[1:]))))
def test_as_on_one_device(alone: Any, watches: Watches, case: Case) -> None:
    more = {} if case.spare is None else moving(case.spare)
    watches.clear()
    compare(alone, options(case.world, case.drafts, case.schedule, **more), case.drafts, case.schedule)
    if case.world != (1, 2, 1):  # no experts are shared, so there is nothing to watch
        # With 8 spare places, popular experts have two from the start, and moving may save too little.
        moves = None if case.spare == 8 else bool(more)
        watches.check(case.world.size, halves=bool(more), moves=moves)


def test_each_group_on_two_nodes(alone: Any, watches: Watches) -> None:
    given = on_nodes(World(2, 2, 4), "auto, ahead", "chunks", nnodes=4)
    with ranks_of_other_nodes(given):
        compare(alone, given, "auto, ahead", "chunks")


def test_a_group_on_each_node(alone: Any, watches: Watches) -> None:
    """Spare experts, which move; steps in two halves; rows in fp8. With drafts, the texts of one device
    without drafts. bf16 has others."""
    watches.clear()
    given = on_nodes(World(2, 1, 2), "fp8 rows", "chunks", nnodes=2, **moving(2))
    with ranks_of_other_nodes(given):
        compare(alone, given, None, "chunks", plain="fp8 rows, off")
    watches.check(2, halves=True, moves=True)
    assert alone("fp8 rows, off", "whole", 0)[0].texts != alone("off", "whole", 0)[0].texts


def on_nodes(world: World, drafts: str, schedule: str, **more: Any) -> Any:
    return options(world, drafts, schedule, dist_init_addr=free_address(), **more)


def compare(alone: Any, given: Any, drafts: str | None, schedule: str, plain: str = "off") -> None:
    """Texts of all groups with those of one device that drafts in the way `plain` and reads prompts whole;
    acceptance with that of one device that drafts and schedules alike. drafts None: acceptance is not
    compared."""
    groups, small = range(given.groups), schedule == "retracted"
    texts = [alone(plain, "whole", group) for group in groups]
    alike = [texts[group] if drafts is None else alone(drafts, schedule, group) for group in groups]

    def check(found: Sequence[Found], turn: int) -> None:
        for group, each in enumerate(found):
            if not each.answers:
                assert each.steps > 0
                continue
            assert each.texts == texts[group][turn].texts
            assert (accepted(each) > 0) == (given.speculation.num_steps > 0)
            assert (each.retracted > 1) == small
            if drafts is not None:
                assert each.specs == alike[group][turn].specs
                assert each.retracted == alike[group][turn].retracted
            if turn:
                assert small or any(answer.cached for answer in each.answers.values())

    with Groups(given) as engines:
        work = [jobs(group) for group in groups]
        check(engines.serve([AtOnce(each) for each in work], small), 0)
        # All sleep now. Some have nothing to do in the next steps.
        if len(groups) > 1:
            again = [longer(each) if group % 2 else [] for group, each in enumerate(work)]
            check(engines.serve(list(map(AtOnce, again)), small), 1)
        if given.nnodes == 1 and not ALL_CASES:
            return
        # Whenever they come, and whoever is aborted beside them.
        gone = [[Job(f"x{job.rid}", job.tokens, job.params) for job in each[:3]] for each in work]
        players = [AnyTime(*pair, seed=group) for group, pair in enumerate(zip(work, gone, strict=True))]
        for group, found in enumerate(engines.serve(players, small)):
            wanted = texts[group][0].texts
            assert {rid: found.texts[rid] for rid in wanted} == wanted
