"""`nextn bench offline` on the fake model: the block, the record, what is counted."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from nextn.bench.offline import Run, generate, offline_block
from nextn.bench.progress import Progress
from nextn.cli import main
from nextn.config import EngineConfig
from nextn.engine.engine import Engine
from nextn.stats import SpecStats
from nextn.trace_file import read

BLOCK = """\
====== Offline Throughput Benchmark Result =======
Backend:                                 nextn     |
Successful requests:                     4         |
Benchmark duration (s):                  2.00      |
Total input tokens:                      100       |
Total generated tokens:                  30        |
Last generation throughput (tok/s):      17.50     |
Request throughput (req/s):              2.00      |
Input token throughput (tok/s):          50.00     |
Output token throughput (tok/s):         15.00     |
Total token throughput (tok/s):          65.00     |
Accept length:                           2.60      |
-------------------Speculation--------------------
Acceptance at position 1:                0.90      |
Acceptance at position 2:                0.75      |
==================================================""".replace("|", "")


@pytest.fixture(autouse=True)
def _same_threads() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def test_block() -> None:
    found = Run(4, 2.0, 100, 0, 30, 17.5, SpecStats(10, [10, 8], [9, 6], 26))
    assert offline_block(found) == BLOCK
    found.spec = SpecStats(30, [], [], 30)
    plain = offline_block(found)
    assert "Accept" not in plain
    assert plain.splitlines()[:-1] == BLOCK.splitlines()[:11]


def run(*words: str) -> int:
    common = ["--model-path", "fake:1,1", "--threads", "1", "--kv-cache-tokens", "4096"]
    return main(["bench", "offline", *common, *words])


def test_a_load(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "out.jsonl"
    words = ["--dataset-name", "random-ids", "--num-prompts", "5", "--random-input-len", "20"]
    words += ["--random-output-len", "13", "--random-range-ratio", "1", "--output-file", str(file)]
    assert run(*words, "--speculative-num-steps", "2") == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0] == BLOCK.splitlines()[0]
    record = json.loads(out[-1])
    assert (record["successful_requests"], record["total_input_tokens"]) == (5, 100)
    assert (record["total_output_tokens"], record["cached_tokens"]) == (65, 0)
    # All drafts hold: 13 tokens are one from the prompt and four steps of three.
    assert (record["accept_length"], record["accept_rates"]) == (3.0, [1.0, 1.0])
    seconds = record["total_latency"]
    assert record["output_throughput"] == pytest.approx(65 / seconds, rel=0.01)
    assert record["total_throughput"] == pytest.approx(165 / seconds, rel=0.01)
    assert record["last_gen_throughput"] > 0
    assert record["engine"]["drafts"] == 2
    assert run(*words, "--skip-warmup", "--seed", "7", "--speculative-num-steps", "0") == 0
    first, second = map(json.loads, file.read_text().splitlines())
    assert first == record
    assert (first["seed"], second["seed"]) == (1, 7)
    assert (second["accept_length"], second["accept_rates"]) == (None, [])


def test_custom_lengths_and_the_cache(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "prompts.jsonl"
    lines = [{"prompt": list(range(5, 5 + n)), "output_len": n} for n in (4, 32, 32)]
    file.write_text("\n".join(map(json.dumps, lines)))
    words = ["--dataset-name", "custom", "--dataset-path", str(file), "--max-running-requests", "1"]
    assert run(*words) == 0
    record = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (record["total_input_tokens"], record["total_output_tokens"]) == (68, 68)
    assert record["cached_tokens"] == 16  # the third prompt is the second; a page of its two is known whole


def test_a_profile(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--dataset-name", "random-ids", "--num-prompts", "2", "--random-input-len", "20"]
    words += ["--random-output-len", "13", "--speculative-num-steps", "0", "--profile-dir", str(tmp_path)]
    for steps, expected in (((), 13), (("--profile-steps", "4"), 4)):
        assert run(*words, "--random-range-ratio", "1", *steps) == 0  # the warm-up does not count
        path = Path(capsys.readouterr().err.splitlines()[-1].removeprefix("trace: "))
        found = [event for event in read(path) if event["name"] == "step"]
        assert [event["args"]["requests"] for event in found] == [2] * expected
    assert run("--profile-steps", "4") == 2
    assert "--profile-steps 4 needs --profile-dir" in capsys.readouterr().err
    assert run("--profile-dir", str(path)) == 2


def test_only_this_load_is_counted() -> None:
    engine = Engine(EngineConfig(model_path="fake:1", threads=1, kv_cache_tokens=1024))
    for _ in range(2):
        found = generate(engine, [[5, 6, 7]], [9], True, Progress(1, False))
        assert (found.requests, found.input_tokens, found.output_tokens) == (1, 3, 9)
        assert found.spec.committed == 8


def test_mistakes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text(json.dumps({"prompt": [5, 6]}) + "\n" + json.dumps({"prompt": [5] * 5000}))
    words = ["--dataset-name", "custom", "--dataset-path", str(file)]
    assert run(*words) == 2
    assert "prompt 1 of the dataset: the prompt has 5000 tokens" in capsys.readouterr().err
    assert run("--dataset-name", "sharegpt") == 2
    assert "needs --dataset-path" in capsys.readouterr().err
    assert run("--max-running-requests", "0") == 2
