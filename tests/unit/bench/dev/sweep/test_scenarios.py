"""The lengths of scenarios, and prompts of exactly these lengths."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.small_tokenizer import write_small_tokenizer

from nextn.bench.dev.sweep.scenarios import (
    LENGTHS,
    SHORTEST,
    Scenario,
    check_fits,
    make_samples,
    make_scenario,
)
from nextn.bench.prompts import all_heldout_prompts
from nextn.cli.bench import compare as command
from nextn.config import EMBEDDED, model_folder
from nextn.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_folder(model_folder(EMBEDDED))


def samples(scenario: Scenario, tokenizer: Tokenizer | None, count: int, seed: int = 1) -> list[tuple]:
    return [(s.prompt, s.output_len) for s in make_samples(scenario, tokenizer, count, seed, 4096)]


def test_names_are_the_same_on_the_command_line() -> None:
    assert ("code", *LENGTHS) == command.SCENARIOS


@pytest.mark.parametrize(
    ("name", "full", "tenth"),
    [
        ("random", (3200, 800), (320, 80)),
        ("sharegpt", (2500, 1500), (250, 150)),
        ("translation", (2048, 2048), (205, 205)),
        ("generation", (256, 2048), (26, 205)),
        ("summarization", (2048, 256), (205, 26)),
    ],
)
def test_lengths(name: str, full: tuple[int, int], tenth: tuple[int, int]) -> None:
    one, scaled = make_scenario(name), make_scenario(name, 0.1)
    assert (one.input_len, one.output_len) == full
    assert (scaled.input_len, scaled.output_len) == tenth
    assert one.longest == sum(full)
    assert scaled.title == f"{name} {tenth[0]}/{tenth[1]}"
    assert f"({full[0]}/{full[1]}, scale 0.1)" in scaled.source
    assert "scale" not in one.source


def test_a_scaled_length_has_some_tokens() -> None:
    tiny = make_scenario("generation", 0.01)
    assert (tiny.input_len, tiny.output_len) == (SHORTEST, 20)


def test_code_is_not_scaled(tokenizer: Tokenizer) -> None:
    scenario = make_scenario("code", 0.1, output_len=20)
    assert samples(scenario, None, 3) == [(prompt, 20) for prompt in all_heldout_prompts()[:3]]
    assert scenario.longest == 0


def test_joined_prompts_are_real_text_of_the_length(tokenizer: Tokenizer) -> None:
    scenario = make_scenario("random", 0.1)
    made = samples(scenario, tokenizer, 130)
    assert {(len(prompt), output) for prompt, output in made} == {(320, 80)}
    first = all_heldout_prompts()[0].rstrip() + "\n\n\n" + all_heldout_prompts()[1][:20]
    assert tokenizer.decode(made[0][0]).startswith(first)
    # The 65th begins like the first one, a token later; no two begin alike.
    assert made[64][0][:100] == made[0][0][1:101]
    assert len({tuple(prompt[:16]) for prompt, _ in made}) == 130
    # What is longer than all held-out texts together begins again.
    long = samples(make_scenario("random", 8), tokenizer, 1)[0][0]
    assert len(long) == 25600
    texts = [text.rstrip() + "\n\n\n" for text in all_heldout_prompts()]
    whole = sum(len(tokenizer.encode(text, add_special_tokens=False)) for text in texts)
    assert long[whole:] == long[: 25600 - whole]


def test_random_ids_on_request(tokenizer: Tokenizer) -> None:
    scenario = make_scenario("summarization", 0.1, text="random")
    made = samples(scenario, tokenizer, 4)
    assert {(len(prompt), output) for prompt, output in made} == {(205, 26)}
    assert made == samples(scenario, tokenizer, 4)
    assert made != samples(scenario, tokenizer, 4, seed=2)
    assert scenario.source.startswith("random token ids; 205 input and 26 output tokens")


def test_sharegpt_from_a_file(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_folder(write_small_tokenizer(tmp_path))  # a token is a byte
    turns = [("ask", "answer"), ("x" * 5000, "left out"), ("", "no prompt"), ("again", "yes")]
    file = tmp_path / "talk.json"
    file.write_text(json.dumps([{"conversations": [{"value": t} for t in pair]} for pair in turns]))
    scenario = make_scenario("sharegpt", path=file)
    assert sorted(samples(scenario, tokenizer, 2)) == [("again", 3), ("ask", 6)]
    assert (scenario.title, scenario.longest) == ("sharegpt, talk.json", 0)
    with pytest.raises(ValueError, match="--num-prompts is 3; the dataset sharegpt has 2"):
        samples(scenario, tokenizer, 3)


def test_what_does_not_fit_is_refused_with_a_scale_that_does() -> None:
    scenario = make_scenario("random")
    check_fits(scenario, 4000, "A")
    check_fits(scenario, None, "A")
    check_fits(make_scenario("code"), 10, "A")
    with pytest.raises(ValueError, match=r"random 3200/800 needs 4000 .* A has 3999: give --scale 0\.999 or"):
        check_fits(scenario, 3999, "A")
    check_fits(make_scenario("random", 0.999), 3999, "A")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"name": "chat"}, "--scenario chat: choose from code, random"),
        ({"name": "random", "scale": 0.0}, r"--scale is 0\.0; it must be above 0"),
        ({"name": "random", "scale": float("nan")}, "--scale is nan"),
        ({"name": "code", "text": "random"}, "--text random: the scenario code is real text"),
    ],
)
def test_refusals(words: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_scenario(**words)


def test_too_many_prompts_and_no_tokenizer(tokenizer: Tokenizer) -> None:
    with pytest.raises(ValueError, match="--num-prompts is 20000; the held-out texts make 1"):
        samples(make_scenario("random", 0.01), tokenizer, 20000)
    with pytest.raises(ValueError, match="scenario random needs the model's tokenizer"):
        samples(make_scenario("random"), None, 1)
