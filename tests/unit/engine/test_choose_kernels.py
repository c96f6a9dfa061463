"""Which kernels serve on CUDA, and what users are told when Triton's cannot. On a CPU: unit/ops/cpu."""

import importlib.util
import logging

import pytest
import torch

from nextn.config import EngineConfig
from nextn.engine.kernels import choose_kernels

CUDA = torch.device("cuda")


@pytest.fixture
def gpu(monkeypatch):
    """A device that Triton's kernels run on, as far as torch tells."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: "a device")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())


@pytest.mark.usefixtures("gpu")
def test_where_they_can_serve(caplog):
    with caplog.at_level(logging.INFO, "nextn.engine"):
        assert choose_kernels(EngineConfig(), CUDA) == "triton"
    assert "Triton (a device)" in caplog.text
    for options in ({"kernel_backend": "triton"}, {"dtype": "float32"}, {"dtype": "bfloat16"}):
        assert choose_kernels(EngineConfig(**options), CUDA) == "triton"
    assert choose_kernels(EngineConfig(kernel_backend="reference"), CUDA) == "reference"


def refused(why, **options):
    with pytest.raises(ValueError, match=f"--kernel-backend triton: the Triton kernels cannot serve: {why}"):
        choose_kernels(EngineConfig(kernel_backend="triton", **options), CUDA)
    assert choose_kernels(EngineConfig(**options), CUDA) == "reference"


@pytest.mark.usefixtures("gpu")
def test_what_is_in_their_way(monkeypatch):
    refused("--prefill-attention is naive", prefill_attention="naive")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    refused(r"triton is not installed \(pip install 'nextn\[cuda\]'\)")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (7, 5))
    refused("a device is older than compute capability 8.0")


def test_on_another_device():
    with pytest.raises(ValueError, match=r"--kernel-backend triton: .* --device is cpu"):
        choose_kernels(EngineConfig(kernel_backend="triton"), torch.device("cpu"))
    with pytest.raises(ValueError, match=r"--kernel-backend cpu: .* --device is cuda"):
        choose_kernels(EngineConfig(kernel_backend="cpu"), CUDA)


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(
    "option",
    [
        {"quantization": "w8a16"}, {"quantization": "w4a16"},
        {"speculative_draft_model_quantization": "w8a16"},
    ],
)  # fmt: skip
def test_coarse_weights_are_the_native_kernels_alone(option):
    with pytest.raises(ValueError, match=r"w[48]a16 needs the native kernels: --kernel-backend is triton"):
        choose_kernels(EngineConfig(**option), CUDA)


@pytest.mark.usefixtures("gpu")
def test_a_level_is_of_the_native_kernels_alone():
    with pytest.raises(
        ValueError, match="--cpu-isa avx2 needs the native kernels: --kernel-backend is triton"
    ):
        choose_kernels(EngineConfig(cpu_isa="avx2"), CUDA)
