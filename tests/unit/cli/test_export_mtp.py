"""nextn export-mtp: options, output, errors. What it writes is under test in unit/models/test_export.py."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from nextn.cli import main
from nextn.cli.export_mtp import size
from nextn.models import export


def test_sizes() -> None:
    sizes = {
        "1": 1,
        "300": 300,
        "5GB": 5 * 10**9,
        "1.5 kb": 1500,
        "2GiB": 2**31,
        "7MB": 7_000_000,
        "1kib": 1024,
    }
    assert {text: size(text) for text in sizes} == sizes


@pytest.mark.parametrize("text", ["", "GB", "5TB", "-1", "0", "0.5", "5 G B", "1e3", "5G"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="a size is a number of bytes"):
        size(text)


def test_the_embedded_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert main(["export-mtp", "--input-dir", "nextn-tiny", "--output_dir", str(out), "--progress"]) == 0
    output = capsys.readouterr()
    assert output.out == f"{out}: 1 NextN layer, 42 tensors, 2.4 MB\n"
    assert "2.4/2.4 MB" in output.err
    again = ["export-mtp", "--input-dir", "nextn-tiny", "--output-dir"]
    assert main([*again, str(out)]) == 2
    assert capsys.readouterr().err.endswith(f"error: {out} exists; name a new folder, or remove it first\n")
    assert main([*again, str(tmp_path / "both"), "--with-shared", "--max-shard-size", "1MB"]) == 0
    output = capsys.readouterr()
    assert output.out.endswith("44 tensors, 6.6 MB\n")
    assert output.err == ""
    assert len(list((tmp_path / "both").glob("*.safetensors"))) == 7


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--output-dir", "x"], "the following arguments are required: --input-dir"),
        (["--keep-fp8", "--dequantize"], "not allowed with argument --keep-fp8"),
        (["--with-shared", "--without-shared"], "not allowed with argument --with-shared"),
        (["--max-shard-size", "big"], "'big': a size is a number of bytes"),
    ],
)
def test_wrong_command_line(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as error:
        main(["export-mtp", *words])
    assert error.value.code == 2
    assert message in capsys.readouterr().err


def test_input_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["export-mtp", "--input-dir", str(tmp_path / "no"), "--output-dir", str(tmp_path / "out")]
    assert main(words) == 2
    assert "there is no such folder; --input-dir must name" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_told_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(export, "_read", full)
    assert main(["export-mtp", "--input-dir", "nextn-tiny", "--output-dir", str(tmp_path / "out")]) == 1
    message = (
        f"error: --output-dir {tmp_path / 'out'} cannot be written: [Errno 28] No space left on device\n"
    )
    assert capsys.readouterr().err.endswith(message)
    assert list(tmp_path.iterdir()) == []
