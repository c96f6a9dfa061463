"""Which sides must write the same text, and what is found when they do not."""

from __future__ import annotations

import dataclasses
from typing import Any

from nextn.bench.dev.sweep.identity import Identity, text_key
from nextn.server_config import ServerConfig


def info(dtype: str = "float32", **options: Any) -> dict[str, Any]:
    return {
        **dataclasses.asdict(ServerConfig(**options)),
        "engine": {"dtype": dtype, "device": "cpu", "threads": 1},
    }


def test_only_model_and_arithmetic_make_a_text() -> None:
    one = text_key(info())
    assert one == text_key(
        info(
            speculative_num_steps=4, page_size=32, disable_radix_cache=True, chunked_prefill_size=64,
            threads=2, max_running_requests=4, port=0, context_length=512,
        )
    )  # fmt: skip
    assert one == text_key(info(dtype="float32", **{"device": "cpu"}))  # auto, and what it came to
    assert one != text_key(info(model_path="/models/other"))
    assert one != text_key(info(dtype="bfloat16"))
    assert one != text_key(info(prefill_attention="naive"))
    assert one != text_key(info(load_format="dummy"))


def test_sides_of_one_group_are_held_to_each_other() -> None:
    identity = Identity(["a", "a", "b"])
    for side in (0, 1, 2):
        for prompt in (0, 1):
            identity.add(side, 0, prompt, f"text {prompt} {side == 2}", f"side {side}")
    assert (identity.compared, identity.prompts, identity.differences) == (6, 4, [])
    identity.add(0, 1, 0, "another scenario, another text", "side 0")
    assert identity.differences == []
    identity.add(1, 0, 1, "text 1 ?", "side 1, round 2")
    (difference,) = identity.differences
    assert (difference.prompt, difference.first_where, difference.other_where) == (
        1,
        "side 0",
        "side 1, round 2",
    )


def test_a_server_that_runs_is_only_reported() -> None:
    identity = Identity(["a", None])
    for prompt in range(3):
        identity.add(0, 0, prompt, f"text {prompt}", "ours")
        identity.add(1, 0, prompt, "text 1", "theirs")
    identity.add(1, 0, 9, "the first side failed here", "theirs")
    assert identity.differences == []
    assert identity.compared == 3
    agreement = identity.agreements[1]
    assert (agreement.compared, agreement.differ) == (3, 2)
    assert agreement.first is not None
    assert (agreement.first.first, agreement.first.other) == ("text 0", "text 1")


def test_a_server_that_runs_may_be_the_first_side() -> None:
    identity = Identity([None, "a", None])
    for side in range(3):
        identity.add(side, 0, 0, "same" if side < 2 else "other", f"side {side}")
    assert (identity.compared, identity.differences) == (1, [])
    assert list(identity.agreements) == [2]
    assert identity.agreements[2].differ == 1
