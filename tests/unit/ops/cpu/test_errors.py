"""What users read when the native kernels cannot serve, and how they are chosen."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from support.checkpoints import tiny_config, write_checkpoint
from support.native_kernels import built_levels

from nextn.config import EngineConfig
from nextn.engine.model import make_model
from nextn.families.config import ModelConfig
from nextn.models.native import NativeModel
from nextn.ops.cpu import library as native
from nextn.ops.cpu.interface import INTERFACE
from nextn.ops.cpu.library import NoLibrary, choose_level, library, machine_level

CPU = torch.device("cpu")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path / "model", tiny_config(), {"unused": torch.zeros(1)})


@pytest.fixture
def no_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setattr(native, "FOLDER", tmp_path)
    library.cache_clear()
    yield
    library.cache_clear()


def made(folder: Path, **options: object) -> str:
    """What computes the model that these options give."""
    config = EngineConfig(model_path=str(folder), load_format="dummy", **options)  # type: ignore[arg-type]
    return make_model(config, CPU, threads=1)[1]


@pytest.mark.parametrize(
    ("key", "value"), [("kv_lora_rank", 1025), ("q_lora_rank", 8193), ("hidden_size", 16385)]
)
def test_too_wide_a_model(key: str, value: int) -> None:
    cfg = ModelConfig.from_dict(tiny_config(**{key: value}))
    with pytest.raises(ValueError, match=f"{key} is {value}: the native kernels take at most {value - 1}"):
        NativeModel(cfg, False, 1)


def test_too_many_experts() -> None:
    cfg = ModelConfig.from_dict(tiny_config(n_routed_experts=2048, n_group=8))
    with pytest.raises(ValueError, match="n_routed_experts is 2048"):
        NativeModel(cfg, False, 1)


def test_chosen_where_they_can_serve(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    level = built_levels()[-1]
    with caplog.at_level(logging.INFO, "nextn.engine"):
        assert made(folder) == made(folder, dtype="bfloat16") == made(folder, kernel_backend="cpu") == "cpu"
    assert f"kernels: native {level} (the CPU can run portable" in caplog.text


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"dtype": "float32"}, "--dtype is float32, they compute in bfloat16"),
        ({"prefill_attention": "naive"}, "--prefill-attention is naive, they have the absorbed form only"),
    ],
    ids=str,
)
def test_options_that_they_cannot_honour(
    folder: Path, options: dict[str, str], why: str, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(ValueError, match=f"--kernel-backend cpu: the native kernels cannot serve: {why}"):
        made(folder, kernel_backend="cpu", **options)
    with pytest.raises(ValueError, match=f"--quantization w8a16 needs the native kernels: {why}"):
        made(folder, quantization="w8a16", **options)
    with caplog.at_level(logging.INFO, "nextn.engine"):
        assert made(folder, **options) == "reference"
    assert why in caplog.text


def test_another_device(folder: Path) -> None:
    config = EngineConfig(model_path=str(folder), load_format="dummy", kernel_backend="cpu")
    with pytest.raises(ValueError, match=r"--kernel-backend cpu: .* --device is meta"):
        make_model(config, torch.device("meta"), threads=1)


def test_quantization_with_plain_torch(folder: Path) -> None:
    with pytest.raises(ValueError, match="w8a16 needs the native kernels: --kernel-backend is reference"):
        made(folder, kernel_backend="reference", quantization="w8a16")
    with pytest.raises(ValueError, match="w4a16 needs the native kernels: --kernel-backend is reference"):
        made(folder, kernel_backend="reference", quantization="w4a16")
    for asked in ("w8a16", "w4a16"):
        assert made(folder, quantization=asked) == "cpu"


@pytest.mark.usefixtures("no_library")
def test_not_built(folder: Path) -> None:
    for name in (None, "portable", "avx2"):
        with pytest.raises(NoLibrary, match="they were not built with nextn"):
            library(name)
    with pytest.raises(NoLibrary, match="not built"):
        machine_level()
    with pytest.raises(ValueError, match=r"--kernel-backend cpu: .* they were not built with nextn"):
        made(folder, kernel_backend="cpu")
    with pytest.raises(
        ValueError, match="--quantization w8a16 needs the native kernels: they were not built"
    ):
        made(folder, quantization="w8a16")
    assert made(folder) == "reference"


@pytest.mark.usefixtures("no_library")
def test_not_a_library(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "libnextn_portable.so").write_bytes(b"not a library")
    with pytest.raises(NoLibrary, match=r"libnextn_portable\.so cannot be loaded"):
        machine_level()
    assert made(folder) == "reference"


def test_built_from_other_sources(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built_levels()
    monkeypatch.setattr(native, "INTERFACE", INTERFACE + 1)
    library.cache_clear()
    try:
        with pytest.raises(NoLibrary, match="built from other sources than this nextn; install it again"):
            library()
        with pytest.raises(ValueError, match="built from other sources"):
            made(folder, kernel_backend="cpu")
        assert made(folder) == "reference"
    finally:
        library.cache_clear()


def test_a_compiler_that_knows_less(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The best level that is built serves, and the reason says what is missing."""
    levels = built_levels()
    if len(levels) < 2:
        pytest.skip("this machine runs the portable kernels only")
    (tmp_path / "libnextn_portable.so").symlink_to(native.FOLDER / "libnextn_portable.so")
    monkeypatch.setattr(native, "FOLDER", tmp_path)
    level, reason = machine_level()
    assert level == "portable"
    assert reason.endswith(f"; nextn was built without {levels[-1]}")


def test_a_level_asked_for(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    levels = built_levels()
    with caplog.at_level(logging.INFO, "nextn.engine"):
        assert made(folder, cpu_isa="portable") == "cpu"
    assert "kernels: native portable (--cpu-isa is portable; this machine can run portable" in caplog.text
    assert choose_level("auto") == machine_level()
    for level in levels:
        assert choose_level(level)[0] == level


def test_a_level_beyond_the_machine(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built_levels()
    monkeypatch.setattr(native, "able_levels", lambda: ("portable",))
    with pytest.raises(ValueError, match=r"--cpu-isa avx2: the CPU lacks it; this machine can run portable$"):
        made(folder, cpu_isa="avx2")
    assert made(folder, cpu_isa="portable") == "cpu"


def test_a_level_that_was_not_built(folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    levels = built_levels()
    if len(levels) < 2:
        pytest.skip("this machine runs the portable kernels only")
    (tmp_path / "libnextn_portable.so").symlink_to(native.FOLDER / "libnextn_portable.so")
    monkeypatch.setattr(native, "FOLDER", tmp_path)
    with pytest.raises(ValueError, match=r"--cpu-isa \w+: nextn was built without it; .* run portable$"):
        made(folder, cpu_isa=levels[-1])


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"kernel_backend": "reference"}, "--kernel-backend is reference"),
        ({"dtype": "float32"}, "--dtype is float32"),
    ],
    ids=str,
)
def test_a_level_without_native_kernels(folder: Path, options: dict[str, str], why: str) -> None:
    with pytest.raises(ValueError, match=f"--cpu-isa portable needs the native kernels: {why}"):
        made(folder, cpu_isa="portable", **options)


def test_a_level_of_a_model_without_arithmetic() -> None:
    config = EngineConfig(model_path="fake:0.5", cpu_isa="portable")
    with pytest.raises(
        ValueError, match=r"--cpu-isa portable needs the native kernels: --model-path fake:0\.5"
    ):
        make_model(config, CPU, threads=1)


@pytest.mark.usefixtures("no_library")
def test_a_level_where_none_is_built(folder: Path) -> None:
    with pytest.raises(ValueError, match="--cpu-isa avx2 needs the native kernels: they were not built"):
        made(folder, cpu_isa="avx2")
