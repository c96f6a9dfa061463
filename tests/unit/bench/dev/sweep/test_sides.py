"""The three ways to name a side, and what is wrong with one."""

from __future__ import annotations

import pytest

from nextn.bench.dev.sweep.sides import SideSpec, check_sides, num_steps_sides, option_side, url_side


def test_a_list_of_draft_counts() -> None:
    sides = num_steps_sides("0, 1,3,auto")
    assert [side.name for side in sides] == ["MTP off", "1 draft", "3 drafts", "auto"]
    assert [side.options for side in sides] == [
        ("--speculative-num-steps", n) for n in ("0", "1", "3", "auto")
    ]
    assert all(side.started for side in sides)


def test_options_are_split_as_a_shell_does() -> None:
    side = option_side("big = --model-path '/models/a b' --speculative-num-steps=2")
    assert side == SideSpec("big", ("--model-path", "/models/a b", "--speculative-num-steps=2"))
    assert option_side("plain=") == SideSpec("plain")


@pytest.mark.parametrize(
    ("text", "url", "backend"),
    [
        ("it=http://h:1", "http://h:1", "nextn"),
        ("it=http://h:1/v1/", "http://h:1", "nextn"),
        ("it=vllm+https://h:1", "https://h:1", "vllm"),
        ("it=sglang-oai-chat+http://h/a+b", "http://h/a+b", "sglang-oai-chat"),
        ("it=http://h/a+b", "http://h/a+b", "nextn"),
    ],
)
def test_servers_that_run(text: str, url: str, backend: str) -> None:
    side = url_side(text)
    assert (side.name, side.url, side.backend, side.started) == ("it", url, backend, False)


@pytest.mark.parametrize(
    ("make", "text", "message"),
    [
        (num_steps_sides, "0,,1", "--num-steps 0,,1: it must be a list such as 0,1,2"),
        (num_steps_sides, "", "it must be a list"),
        (option_side, "--speculative-num-steps", '--side --speculative-num-steps: it must be NAME="options'),
        (option_side, "=--threads 1", "it must be NAME="),
        (option_side, "a|b=--threads 1", "it must be NAME="),
        (option_side, "a='--threads", "No closing quotation"),
        (option_side, "a=--port 1", "the benchmark sets --port"),
        (option_side, "a=--host=::", "the benchmark sets --host=::"),
        (url_side, "a", r"it must be NAME=\[BACKEND\+\]URL"),
        (url_side, "a=tgi+http://h", "backend 'tgi'; choose from nextn, sglang"),
        (url_side, "a=h:8000", "'h:8000' is not a URL such as"),
    ],
)
def test_refusals(make: object, text: str, message: str) -> None:
    assert callable(make)
    with pytest.raises(ValueError, match=message):
        make(text)


def test_a_comparison_has_two_sides_with_names_of_their_own() -> None:
    check_sides(num_steps_sides("0,1"))
    with pytest.raises(ValueError, match=r"there is only one side \(MTP off\)"):
        check_sides(num_steps_sides("0"))
    with pytest.raises(ValueError, match="two sides are called '1 draft'"):
        check_sides([*num_steps_sides("0,1"), option_side("1 draft=")])
