"""A new folder appears complete, with an ordinary folder's rights, or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nextn.models.new_folder import new_folder


def test_it_appears_at_the_end(tmp_path: Path) -> None:
    output = tmp_path / "a" / "b"
    with new_folder(output) as folder:
        (folder / "x").write_text("x")
        assert not output.exists()
    assert (output / "x").read_text() == "x"
    assert [f.name for f in output.parent.iterdir()] == ["b"]
    ordinary = tmp_path / "ordinary"
    ordinary.mkdir()
    assert output.stat().st_mode == ordinary.stat().st_mode


def test_an_empty_folder_is_taken_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkdir("out")
    with new_folder(Path("out")) as folder:
        (folder / "x").touch()
    assert [f.name for f in (tmp_path / "out").iterdir()] == ["x"]


def test_a_folder_filled_meanwhile_is_kept(tmp_path: Path) -> None:
    output = tmp_path / "out"

    def write() -> None:
        with new_folder(output) as folder:
            (folder / "mine").touch()
            output.mkdir()
            (output / "theirs").touch()

    with pytest.raises(OSError):
        write()
    assert [f.name for f in output.iterdir()] == ["theirs"]
    assert list(tmp_path.iterdir()) == [output]


@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt()])
def test_an_error_leaves_nothing(tmp_path: Path, error: BaseException) -> None:
    def write() -> None:
        with new_folder(tmp_path / "out") as folder:
            (folder / "x").touch()
            raise error

    with pytest.raises(type(error)):
        write()
    assert list(tmp_path.iterdir()) == []


def test_what_exists_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for taken in (tmp_path, tmp_path / "file"):
        with (
            pytest.raises(ValueError, match="exists; name a new folder, or remove it first"),
            new_folder(taken),
        ):
            pytest.fail("entered")
