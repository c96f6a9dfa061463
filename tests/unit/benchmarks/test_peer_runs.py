"""The protocol with a real process behind it, the turns, and the report of what came of them."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import pytest

FAKE = """
import os, sys, time
sys.path.insert(0, {peers!r})
from protocol import Reply, Spec, serve

def start(options):
    print("noise on stdout")
    os.write(1, b"noise below Python\\n")
    if options.dtype == "broken":
        sys.exit("no such format")
    if options.dtype == "silent":
        time.sleep(60)
    def generate(prompts, max_tokens):
        if prompts[0][0] == 13:
            raise ValueError("unlucky prompt")
        if prompts[0][0] == 14:
            os._exit(3)
        short = prompts[0][0] == 15
        time.sleep(0.001 * max_tokens)
        tokens = [[p[-1] + i + 1 for i in range(max_tokens - short)] for p in prompts]
        return Reply(0.001 * max_tokens, tokens, Spec([10, 8], [9, 6]) if options.drafts else None)
    return "fake 1", {{"drafts": options.drafts, "variable": os.environ.get("SET_FOR_IT")}}, generate

serve(start)
"""


@pytest.fixture
def fake(peers: Path, tmp_path: Path) -> Path:
    script = tmp_path / "runner_fake.py"
    script.write_text(FAKE.format(peers=str(peers)))
    return script


def start(script: Path, dtype: str = "float32", drafts: int = 0, most_seconds: float = 30.0):
    from protocol import Options
    from runner_process import RunnerProcess

    options = Options("model", 1, dtype, drafts, "folder")
    return RunnerProcess(Path(sys.executable), script, options, {"SET_FOR_IT": "yes"}, most_seconds)


def test_a_runner_answers_whatever_its_engine_prints(fake: Path) -> None:
    from protocol import Spec

    runner = start(fake, drafts=2)
    try:
        assert runner.engine == "fake 1"
        assert runner.settings == {"drafts": 2, "variable": "yes"}
        reply = runner.generate([[1, 2], [7]], 3)
        assert reply.tokens == [[3, 4, 5], [8, 9, 10]]
        assert reply.seconds == pytest.approx(0.003)
        assert reply.spec == Spec([10, 8], [9, 6])
        runner.freeze()
        runner.thaw()
        assert runner.generate([[1]], 1).tokens == [[2]]
    finally:
        runner.end()
    runner.end()


@pytest.mark.parametrize(
    ("prompt", "says"),
    [(13, "ValueError: unlucky prompt"), (14, "it ended"), (15, r"1 prompts of 4 new tokens gave \[3\]")],
)
def test_what_goes_wrong_is_told(fake: Path, prompt: int, says: str) -> None:
    from runner_process import RunnerFailed

    runner = start(fake)
    with pytest.raises(RunnerFailed, match=says):
        runner.generate([[prompt]], 4)
    runner.end()


def test_an_engine_that_does_not_start_says_why(fake: Path) -> None:
    from runner_process import RunnerFailed

    with pytest.raises(RunnerFailed, match="no such format"):
        start(fake, dtype="broken")


def test_an_engine_that_hangs_is_ended(fake: Path) -> None:
    from runner_process import RunnerFailed

    begin = time.monotonic()
    with pytest.raises(RunnerFailed, match="did not answer in 1 s"):
        start(fake, dtype="silent", most_seconds=1.0)
    assert time.monotonic() - begin < 15


def test_one_that_is_interrupted_while_it_starts_leaves_no_process(
    fake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import runner_process

    started: list[int] = []

    def interrupted(self: runner_process.RunnerProcess) -> None:
        started.append(self._process.pid)
        raise KeyboardInterrupt

    monkeypatch.setattr(runner_process.RunnerProcess, "_read", interrupted)
    with pytest.raises(KeyboardInterrupt):
        start(fake, dtype="silent")
    with pytest.raises(ProcessLookupError):
        os.killpg(started[0], 0)


def test_a_frozen_runner_that_is_ended_leaves_no_process(fake: Path) -> None:
    runner = start(fake)
    pid = runner._process.pid
    runner.freeze()
    runner.end()
    with pytest.raises(ProcessLookupError):
        os.killpg(pid, 0)


def test_turns_medians_and_failures(fake: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import measure as module
    from cases import cases, random_prompts
    from variants import Variant

    said: list[str] = []
    monkeypatch.setattr(module, "_start", lambda v, model, folder, threads: start(fake, v.dtype, v.drafts))
    variants = [Variant("nextn", "float32", 0), Variant("vllm", "broken", 0), Variant("vllm", "bfloat16", 2)]
    found = module.measure(
        variants, cases(random_prompts(99, 1, 16), True, 4096), "model", tmp_path, 1, 2, 0.0, said.append
    )
    assert [line for line in said if "failed" not in line] == [
        "round 1 of 2: nextn:float32", "round 1 of 2: vllm:broken", "round 1 of 2: vllm:bfloat16:mtp2",
        "round 2 of 2: nextn:float32", "round 2 of 2: vllm:bfloat16:mtp2",
    ]  # fmt: skip
    ours, broken, theirs = (found[v] for v in variants)
    assert broken.error is not None
    assert "no such format" in broken.error
    # One token takes a millisecond, whatever the batch.
    assert ours.median("prefill") == pytest.approx(512_000)
    assert ours.median("prefill2048") == pytest.approx(2_048_000)
    assert ours.median("single") == pytest.approx(1000)
    assert ours.median("batch8") == pytest.approx(8000)
    assert ours.median("batch32") == pytest.approx(32000)
    assert len(ours.speeds["single"]) == 2
    assert ours.texts == theirs.texts
    assert ours.spec is None
    assert theirs.spec is not None
    assert (theirs.spec.proposed, theirs.spec.accepted) == (
        [40, 32],
        [36, 24],
    )  # two single streams and two batches, of one round
    assert not ours.idle


class Disturbed:
    """Replies whose times contradict each other, `times` times."""

    def __init__(self, times: int) -> None:
        self.times = times

    def generate(self, prompts, max_tokens: int):
        from protocol import Reply

        seconds = 0.01 * max_tokens
        if max_tokens > 1 and self.times:
            self.times -= 1
            seconds = 0.001
        return Reply(seconds, [[5] * max_tokens for _ in prompts])


@pytest.mark.parametrize("times", [0, 1, 2, 3])
def test_what_a_neighbour_disturbed_is_measured_again(peers: Path, times: int) -> None:
    from cases import Case
    from measure import _measured

    case = Case("single", (((1, 2),),), 11)
    if times == 3:
        with pytest.raises(ValueError, match="not idle"):
            _measured(Disturbed(times), case)
    else:
        assert _measured(Disturbed(times), case)[2] == pytest.approx(100.0)


def spec_of(proposed: list[int], accepted: list[int]):
    from protocol import Spec

    return Spec(proposed, accepted)


def found_of(speed: float, text: list[int], spec=None, error: str | None = None):
    from measure import Found

    names = ("prefill", "prefill2048", "single", "batch8", "batch32")
    return Found("engine", {}, {n: [speed, speed, 9e9] for n in names}, {n: [text] for n in names}, spec,
                 error=error)  # fmt: skip


def test_report_of_peers(peers: Path) -> None:
    from report import report, table
    from variants import Variant

    text = list(range(10, 30))
    reference = Variant("nextn", "float32", 0)
    found = {
        reference: found_of(100.0, text),
        Variant("nextn", "bfloat16", 2): found_of(150.0, text, spec_of([100, 90], [90, 70])),
        Variant("vllm", "bfloat16", 2): found_of(120.0, text, spec_of([200, 200], [181, 160])),
        Variant("llamacpp", "bfloat16", 0): found_of(500.0, [3] * 20),
        Variant("transformers", "bfloat16", 0): found_of(0.0, text, error="it ended\nTraceback\nImportError"),
    }
    result = report(found, reference, frozenset({1}))
    # A peer that computes something else is no peer, however fast.
    assert result["engines"]["llamacpp:bfloat16"]["comparable"] is False
    assert result["best"]["single"]["peer"] == "vllm:bfloat16:mtp2"
    assert result["best"]["single"]["ratio"] == 1.25
    assert "single_without_mtp" not in result["best"]
    assert result["engines"]["transformers:bfloat16"]["error"] == "it ended: ImportError"
    (acceptance,) = result["acceptance"]
    assert (acceptance["ours"], acceptance["peer"]) == ("nextn:bfloat16:mtp2", "vllm:bfloat16:mtp2")
    assert acceptance["agrees"]
    json.dumps(result)
    lines = "\n".join(table({**result, "missing": {"llamacpp": "install.sh llamacpp"}}))
    assert "llamacpp is missing; install it with: install.sh llamacpp" in lines
    assert "0% of prompts,   0% of tokens: not comparable" in lines
    assert "single                1.25 x the best peer" in lines
    assert "failed: it ended: ImportError" in lines
    assert lines.count("agrees") == 2


def test_file_is_named_theme_hardware_date(peers: Path) -> None:
    from report import file_name

    from nextn.bench.machine import Machine

    machine = Machine("AMD EPYC(TM) 9004", 2, "3.11", "2.13")
    assert (
        file_name("nextn-tiny", machine, "2026-11-21")
        == "peers-nextn-tiny_amd-epyc-tm-9004-2c_2026-11-21.json"
    )
