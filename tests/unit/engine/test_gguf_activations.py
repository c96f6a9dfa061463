"""--gguf-activations: where inputs of products with GGUF's formats are rounded to 8 bits."""

from __future__ import annotations

import pytest
import torch

from nextn.config import EngineConfig
from nextn.engine import kernels
from nextn.engine.kernels import choose_kernels, ways_of
from nextn.ops.cpu.interface import BF16, BY_BYTES, Q4_K, Q6_K

CPU = torch.device("cpu")


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The kinds that it can multiply so. They are faster in bytes than in bf16."""
    able = [Q4_K]

    class Ways:
        def __init__(self, level: str, rounded: bool) -> None:
            self.rounded = rounded

        def of(self, kind: int) -> int:
            return BY_BYTES if self.rounded and kind in able else 3

    monkeypatch.setattr(kernels, "by_bytes", lambda level: frozenset(able))
    monkeypatch.setattr(kernels, "Ways", Ways)
    return able


def way(kind: int, **options: object) -> int:
    return ways_of(EngineConfig(**options), "avx512")(kind)  # type: ignore[arg-type]


def test_of_the_kinds_that_the_machine_can(machine: list[int]) -> None:
    assert way(Q4_K) == BY_BYTES
    assert way(Q4_K, gguf_activations="int8") == BY_BYTES
    assert way(BF16) == 3
    assert way(Q4_K, gguf_activations="bf16") == 3
    machine.clear()
    assert way(Q4_K) == 3
    with pytest.raises(ValueError, match="--gguf-activations int8: level avx512 needs AVX512-VNNI"):
        way(Q4_K, gguf_activations="int8")
    with pytest.raises(ValueError, match="--gguf-activations int8: level portable has no such kernels"):
        ways_of(EngineConfig(gguf_activations="int8"), "portable")


@pytest.mark.usefixtures("machine")
def test_another_machine_need_not_be_able() -> None:
    """So a level that is asked for, and several machines, have inputs in bf16 unless asked."""
    for options in ({"cpu_isa": "avx512"}, {"distributed_executor_backend": "ray", "tp_size": 2}):
        assert way(Q4_K, **options) == 0
        assert way(Q4_K, gguf_activations="int8", **options) == BY_BYTES


def test_int8_does_not_ask_which_is_faster(machine: list[int]) -> None:
    """And `auto` does: this machine's bf16 is faster in Q6_K."""
    able = frozenset({Q4_K, Q6_K})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "by_bytes", lambda level: able)
        assert way(Q6_K) == 3
        assert way(Q6_K, gguf_activations="int8") == BY_BYTES


def test_other_kernels_widen_all_weights() -> None:
    with pytest.raises(ValueError, match="--gguf-activations int8 needs the native kernels"):
        choose_kernels(EngineConfig(kernel_backend="reference", gguf_activations="int8"), CPU)
    assert choose_kernels(EngineConfig(kernel_backend="reference", gguf_activations="bf16"), CPU)
