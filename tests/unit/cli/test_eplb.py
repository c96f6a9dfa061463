"""nextn eplb: from a dump of counts to a table, a placement that an engine takes, and a picture."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import numpy as np
import pytest
from support import markdown

from nextn.bench.expert_plot import shard_load_maps
from nextn.cli import main
from nextn.distributed.eplb import balanced
from nextn.distributed.placement_file import Sizes, initial_placement

COUNTS = [[100, 100, 100, 800], [5, 5, 5, 5], [0, 0, 0, 0]]
PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    path = tmp_path / "dump.json"
    path.write_text(json.dumps({"logical_count": [COUNTS], "nextn_logical_count": [[9, 1, 1, 1], [0] * 4]}))
    return path


def test_table_file_and_picture(dump: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, plot = tmp_path / "experts.json", tmp_path / "experts.png"
    sizes = ["--ep-size", "2", "--ep-num-redundant-experts", "2"]
    assert main(["eplb", str(dump), *sizes, "--output", str(out), "--plot", str(plot)]) == 0
    assert capsys.readouterr().out == (
        "4 experts and 2 spare replicas on 2 shards; highest load of a shard over the mean:\n"
        "\n"
        "layer         rows  trivial  planned  most replicas\n"
        "    0        1,100     1.64     1.00  2 of expert 0\n"
        "    1           20     1.00     1.00  2 of expert 0\n"
        "    2            0     1.00     1.00  2 of expert 0\n"
        "  all        1,120     1.62     1.00\n"
        "\n"
        "NextN layers, whose experts are not placed (each attention group has all of them):\n"
        "    0           12 rows, expert 0 has 3.00 times the mean\n"
        "    1            0 rows, expert 0 has 1.00 times the mean\n"
        "\n"
        f"written: {out}\n"
        f"written: {plot}\n"
    )
    planned = balanced(np.array(COUNTS), 6, 2)
    assert initial_placement(str(out), Sizes(3, 4, 6, 2)) == planned
    assert plot.read_bytes().startswith(PNG)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["dump.json", "experts.json", "experts.png"]


def test_nodes_and_groups(dump: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "experts.json"
    dump.write_text(json.dumps({"logical_count": [[9, 8, 8, 8, 1, 1, 2, 2]]}))
    options = ["--ep-size=2", "--nnodes=2", "--groups=4", "--output", str(out)]
    assert main(["eplb", str(dump), *options]) == 0
    assert json.loads(out.read_text()) == {"physical_to_logical_map": [[0, 1, 4, 5, 2, 3, 6, 7]]}
    shown = capsys.readouterr().out
    assert "    0           39     1.69     1.03  1\n" in shown
    assert "NextN" not in shown


def test_pictures_of_many_and_of_equal_loads() -> None:
    loads = np.random.default_rng(0).uniform(0, 9, (58, 32))
    for values in (loads, np.ones((1, 1)), np.ones((3, 2))):
        assert shard_load_maps("title", {"before": values, "after": values}).startswith(PNG)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--ep-size", "3"], "4 physical experts (4 and 0 spare) cannot be divided evenly among 3 shards"),
        (["--ep-size", "0"], "--ep-size, --nnodes and --groups are 1 or more"),
        (["--ep-size", "2", "--ep-num-redundant-experts", "-2"], "--ep-num-redundant-experts is 0 or more"),
        (["--ep-size", "1", "--nnodes", "2", "--groups", "2"], "1 shards must be a multiple of 2 nodes"),
        (["--ep-size", "2", "--output", "none/x.json"], "cannot write none/x.json"),
        (["--ep-size", "2", "--plot", "none/x.png"], "cannot write none/x.png"),
    ],
)
def test_mistakes(dump: Path, options: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eplb", str(dump), *options]) == 2
    shown = capsys.readouterr()
    assert shown.err.startswith("nextn eplb: error: ")
    assert message in shown.err
    assert shown.out == ""


def test_no_dump(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eplb", str(tmp_path / "none.json"), "--ep-size", "2"]) == 2
    assert "none.json cannot be read" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["eplb", "x.json"])
    assert "--ep-size" in capsys.readouterr().err


def test_the_example_of_the_docs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[3] / "docs" / "eplb.md").read_text(encoding="utf-8")
    *_, (_, counts), (_, session), (_, placement) = markdown.code_blocks(page)
    command, _, shown = session.partition("\n")
    Path("counts.json").write_text(counts)
    assert main(shlex.split(command)[2:]) == 0
    assert capsys.readouterr().out.strip() == shown.strip()
    assert json.loads(Path("experts.json").read_text()) == json.loads(placement)
