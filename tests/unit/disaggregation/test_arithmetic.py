"""The arithmetic of a prefill and a decode server: chosen as a server alone chooses it, and compared."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from support.agents import alone, pair
from support.gguf_models import WHOLE_BLOCKS, as_gguf, random_folder
from support.native_kernels import built_levels
from support.transfers import Bootstrap

from nextn.engine.engine import Engine
from nextn.ops.cpu import coded, ways
from nextn.ops.cpu.interface import BY_BYTES, INT8, Q8_0, WAYS
from nextn.request import SamplingParams
from nextn.server_config import ServerConfig

pytestmark = pytest.mark.skipif(not built_levels(), reason="no native kernels")
PARAMS = SamplingParams(max_tokens=6, temperature=1.0, seed=5, ignore_eos=True)
PAIRS, ADDS = 2, 3  # ways: dot products of bf16 pairs, f32 multiply-adds


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[int]:
    """What was measured, on a machine with all ways: dot products of bytes are fastest, then f32
    multiply-adds. (Tests measure nothing otherwise, see tests/conftest.py.)"""
    kinds: list[int] = []

    class Kernels:
        def nx_ways(self, kind: int) -> int:
            return {INT8: 1 << PAIRS | 1 << ADDS, Q8_0: 1 << PAIRS | 1 << ADDS | 1 << BY_BYTES}.get(kind, 0)

    def measure(level: str, kind: int, some: Sequence[int]) -> dict[int, list[float]]:
        kinds.append(kind)
        return {way: [{ADDS: 0.5, BY_BYTES: 0.2}.get(way, 1.0)] * len(ways.ROWS) for way in some}

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(ways, "library", lambda level: Kernels())
    monkeypatch.setattr(ways, "measure", measure)
    return kinds


@pytest.fixture
def bootstrap() -> Iterator[Bootstrap]:
    made = Bootstrap()
    yield made
    made.close()


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A small model with weights in int8 and Q8_0."""
    folder, _, _ = random_folder(tmp_path_factory.mktemp("model"), WHOLE_BLOCKS)
    return str(as_gguf(folder, folder / "model.gguf", "q8_0"))


def engine_of(file: str, mode: str, **options: Any) -> Engine:
    """The engine of a server in this mode."""
    config = ServerConfig(
        model_path=file, disaggregation_mode=mode, threads=1, context_length=72, kv_cache_tokens=512,
        page_size=4, speculative_num_steps=1, check_integrity=True, **options,
    )  # fmt: skip
    return Engine(config)


def test_it_is_that_of_one_server(bootstrap: Bootstrap, file: str, measured: list[int]) -> None:
    """Also if all three start for the first time, together."""
    with ThreadPoolExecutor(3) as threads:
        modes = ("null", "prefill", "decode")
        one, prefill, decode = threads.map(lambda mode: engine_of(file, mode), modes)
    chosen = {"int8": WAYS[ADDS], "Q8_0": WAYS[BY_BYTES]}
    assert one.info.arithmetic == prefill.info.arithmetic == decode.info.arithmetic == chosen
    assert sorted(measured) == [INT8, Q8_0]
    if Q8_0 not in coded.by_bytes(str(one.info.isa)):
        return  # this machine cannot multiply so
    prompt = [*range(2, 32)]
    with pair(bootstrap, prefill, decode) as both:
        both.ask("a", prompt, PARAMS)
        both.settle()
        assert both.decode.texts["a"] == alone(prompt, PARAMS, one)
        assert (both.decode.agent.stats.fallbacks, both.decode.agent.stats.pages) == (0, 8)


@pytest.mark.parametrize("inputs", ["auto", "bf16"])
def test_machines_that_choose_otherwise_are_refused(
    bootstrap: Bootstrap, file: str, measured: list[int], caplog: pytest.LogCaptureFixture, inputs: str
) -> None:
    """The decode server has the level's own arithmetic, as a machine that chose it. inputs: the prefill
    server's --gguf-activations."""
    prefill = engine_of(file, "prefill", gguf_activations=inputs)
    decode, one = (engine_of(file, mode, cpu_isa=prefill.info.isa) for mode in ("decode", "null"))
    assert decode.info.arithmetic == {}
    prompt = [*range(2, 32)]
    with pair(bootstrap, prefill, decode) as both:
        asked = both.asked("a", prompt, PARAMS)
        both.answer(asked)
        bootstrap.routes[asked.room] = "127.0.0.1", both.network.port  # the prefill server computes nothing
        with caplog.at_level(logging.WARNING, "nextn"):
            while both.decode.engine.has_work():
                both.turn([both.decode])
        assert both.decode.texts["a"] == alone(prompt, PARAMS, one)
        assert (both.decode.agent.stats.fallbacks, both.decode.agent.stats.pages) == (1, 0)
    way = {"auto": "dot products of bytes", "bf16": "f32 multiply-adds"}[inputs]
    assert (
        "refused: arithmetic is the default on the decode server and int8 weights by f32 multiply-adds, "
        f"Q8_0 weights by {way} on the prefill server (start both with the same --cpu-isa LEVEL, and the "
        "same --gguf-activations)"
    ) in caplog.text
    assert sorted(measured) == [INT8, Q8_0]
