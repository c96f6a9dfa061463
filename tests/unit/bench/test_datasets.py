"""What a load asks: the same for the same seed, of the lengths that are documented; and when it asks."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.small_tokenizer import write_small_tokenizer

from nextn.bench.arrivals import poisson_arrivals
from nextn.bench.datasets import DATASETS, Options, Sample, load_samples, random_lengths
from nextn.bench.prompts import all_heldout_prompts
from nextn.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.from_folder(write_small_tokenizer(tmp_path_factory.mktemp("tokenizer")))


@pytest.fixture
def talk(tmp_path: Path) -> Path:
    pairs: list[tuple[str, ...]] = [(f"question {i}" * (i + 1), "answer" * (i + 1)) for i in range(8)]
    pairs += [("", "no question"), ("no answer",), ("short answer", "a"), ("long " * 100, "one " * 100)]
    entries = [{"conversations": [{"from": "x", "value": turn} for turn in pair]} for pair in pairs]
    file = tmp_path / "talk.json"
    file.write_text(json.dumps(entries))
    return file


def options(name: str, talk: Path, **changes: Any) -> Options:
    custom = talk.with_name("custom.jsonl")
    custom.write_text('{"prompt": "a"}\n\n{"prompt": [5, 6], "output_len": 3}\n')
    given: dict[str, Any] = {"sharegpt": {"path": talk}, "custom": {"path": custom, "num_prompts": 2}}
    small = {
        "num_prompts": 6, "random_input_len": 40, "random_output_len": 20, "gsp_num_groups": 2,
        "gsp_prompts_per_group": 3, "gsp_system_prompt_len": 16, "gsp_question_len": 4, "gsp_output_len": 5,
    }  # fmt: skip
    return Options(name, **{**small, **given.get(name, {}), **changes})


@pytest.mark.parametrize("name", DATASETS)
def test_the_same_for_the_same_seed(name: str, tokenizer: Tokenizer, talk: Path) -> None:
    first = load_samples(options(name, talk), tokenizer)
    assert first == load_samples(options(name, talk), tokenizer)
    assert len(first) == (2 if name == "custom" else 6)
    other = load_samples(options(name, talk, seed=2), tokenizer)
    assert (first == other) == (name in ("code", "custom"))


@pytest.mark.parametrize("name", ["random", "random-ids"])
@pytest.mark.parametrize("ratio", [0.0, 0.5, 1.0])
def test_random_lengths_are_exact(name: str, ratio: float, tokenizer: Tokenizer, talk: Path) -> None:
    samples = load_samples(options(name, talk, num_prompts=200, random_range_ratio=ratio), tokenizer)
    inputs, outputs = [len(s.prompt) for s in samples], [s.output_len for s in samples]
    assert min(inputs) >= max(int(40 * ratio), 1)
    assert min(outputs) >= max(int(20 * ratio), 1)
    assert (max(inputs), max(outputs)) == (40, 20)
    assert (len(set(inputs)) == 1) == (ratio == 1.0)
    assert all(2 <= token < tokenizer.vocab_size for s in samples for token in s.prompt)  # no BOS, no EOS
    assert len({tuple(s.prompt[:8]) for s in samples if len(s.prompt) >= 8}) > 100


@given(st.integers(1, 300), st.floats(0, 1))
@settings(max_examples=50, deadline=None)
def test_range_of_lengths(full: int, ratio: float) -> None:
    lengths = random_lengths(full, ratio, 100, np.random.default_rng(0))
    assert max(int(full * ratio), 1) <= min(lengths) <= max(lengths) <= full


def test_random_is_real_text(tokenizer: Tokenizer, talk: Path) -> None:
    held_out = "\n".join(all_heldout_prompts())
    for sample in load_samples(options("random", talk, random_input_len=30), tokenizer):
        assert tokenizer.decode(sample.prompt) in held_out
    texts = json.loads(talk.read_text())
    firsts = [entry["conversations"][0]["value"] * 3 for entry in texts if entry["conversations"]]
    for sample in load_samples(options("random", talk, path=talk, num_prompts=30), tokenizer):
        start = tokenizer.decode(sample.prompt)[:12]
        assert any(start in text for text in firsts)


def test_code_never_begins_alike(talk: Path) -> None:
    samples = load_samples(options("code", talk, num_prompts=None), None)
    assert [s.prompt for s in samples] == all_heldout_prompts()
    assert {s.output_len for s in samples} == {128}
    many = load_samples(options("code", talk, num_prompts=200, output_len=9), None)
    assert [s.prompt for s in many[:64]] == all_heldout_prompts()
    assert all(s.output_len == 9 for s in many)
    assert many[64].prompt == all_heldout_prompts()[0].partition("\n")[2]


def test_sharegpt(tokenizer: Tokenizer, talk: Path) -> None:
    samples = load_samples(options("sharegpt", talk, num_prompts=9), tokenizer)
    by_prompt = {s.prompt: s.output_len for s in samples}
    assert len(by_prompt) == 9
    assert by_prompt["question 0"] == len("answer")  # a token is a byte
    assert not {"", "no answer", "short answer"} & set(by_prompt)
    fixed = load_samples(options("sharegpt", talk, sharegpt_output_len=7, num_prompts=10), tokenizer)
    assert {s.output_len for s in fixed} == {7}
    with pytest.raises(ValueError, match="--num-prompts is 9; the dataset sharegpt has 8"):
        load_samples(options("sharegpt", talk, num_prompts=9, sharegpt_context_len=300), tokenizer)


def test_custom(tokenizer: Tokenizer, talk: Path) -> None:
    found = load_samples(options("custom", talk, num_prompts=None, output_len=11), None)
    assert found == [Sample("a", 11), Sample([5, 6], 3)]


def test_groups_share_their_prefix_and_nothing_else(tokenizer: Tokenizer, talk: Path) -> None:
    samples = load_samples(options("generated-shared-prefix", talk, num_prompts=None), tokenizer)
    assert all((len(s.prompt), s.output_len) == (20, 5) for s in samples)
    prefixes = [tuple(s.prompt[:16]) for s in samples]
    assert sorted(prefixes.count(p) for p in set(prefixes)) == [3, 3]
    assert len({tuple(s.prompt) for s in samples}) == 6


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("sharegpt", {"path": None}, "--dataset-name sharegpt needs --dataset-path"),
        ("code", {"path": Path("x")}, "leave --dataset-path out"),
        ("code", {"num_prompts": 10**6}, "--num-prompts is 1000000; the dataset code has"),
        ("custom", {"num_prompts": 3}, "--num-prompts is 3; the dataset custom has 2"),
        ("random", {"random_range_ratio": 1.5}, "--random-range-ratio is 1.5"),
        ("generated-shared-prefix", {"num_prompts": 5}, "--num-prompts is 5, but --gsp-num-groups"),
    ],
)
def test_wrong_options(
    name: str, changes: dict[str, Any], message: str, tokenizer: Tokenizer, talk: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        load_samples(options(name, talk, **changes), tokenizer)


@pytest.mark.parametrize("name", ["random", "random-ids", "sharegpt", "generated-shared-prefix"])
def test_a_tokenizer_is_asked_for(name: str, talk: Path) -> None:
    with pytest.raises(ValueError, match=f"--dataset-name {name} needs the model's tokenizer.*--tokenizer"):
        load_samples(options(name, talk), None)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "custom.jsonl:1 is not"), ('{"text": "a"}', "'prompt'"), ("[]", "custom.jsonl:1 is not"),
        ('{"prompt": ""}', "prompt must be text or token ids"), ('{"prompt": [1, "a"]}', "prompt must be"),
        ('{"prompt": "a", "output_len": 0}', "output_len is 0"),
    ],
)  # fmt: skip
def test_wrong_custom_lines(line: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "custom.jsonl"
    file.write_text(line + "\n")
    with pytest.raises(ValueError, match=message):
        load_samples(Options("custom", path=file), None)


def test_not_sharegpt(tmp_path: Path, tokenizer: Tokenizer) -> None:
    for text in ("{", '[{"conversations": [{}, {}]}]', "[1]"):
        (tmp_path / "f.json").write_text(text)
        with pytest.raises(ValueError, match="is not in ShareGPT's form"):
            load_samples(Options("sharegpt", path=tmp_path / "f.json"), tokenizer)


def test_arrivals() -> None:
    assert poisson_arrivals(3, math.inf, 0) == [0.0, 0.0, 0.0]
    assert poisson_arrivals(0, 5.0, 0) == []
    times = poisson_arrivals(20001, 5.0, 1)
    assert times[0] == 0.0
    assert times == poisson_arrivals(20001, 5.0, 1) != poisson_arrivals(20001, 5.0, 2)
    gaps = np.diff(times)
    assert gaps.min() >= 0
    # Exponential: mean and standard deviation are both 1 / rate; the mean's own deviation is 0.2 / 141.
    assert gaps.mean() == pytest.approx(0.2, abs=0.006)
    assert gaps.std() == pytest.approx(0.2, rel=0.05)


@pytest.mark.parametrize("rate", [0.0, -1.0, math.nan])
def test_wrong_rates(rate: float) -> None:
    with pytest.raises(ValueError, match="--request-rate"):
        poisson_arrivals(1, rate, 0)
