"""Files of counts and placements: SGLang's forms are read, and mistakes are named with the file."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from nextn.distributed.eplb import balanced
from nextn.distributed.placement import Placement
from nextn.distributed.placement_file import (
    Sizes,
    initial_placement,
    read_dump,
    write_placement,
)
from nextn.whole_file import write_whole

COUNTS = [[8, 1, 1, 1], [1, 2, 3, 4]]
SIZES = Sizes(layers=2, experts=4, physical=6, shards=2)
MAP = [[0, 1, 2, 0, 3, 1], [0, 1, 2, 3, 0, 1]]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "experts.json"


def save(path: Path, **content: object) -> str:
    path.write_text(json.dumps(content))
    return str(path)


def test_dumps(path: Path) -> None:
    save(path, logical_count=COUNTS, rank=0, average_utilization_rate_over_window=None)
    dump = read_dump(path)
    assert dump.target.tolist() == COUNTS
    assert dump.nextn is None
    save(path, logical_count=[COUNTS, COUNTS, [[0] * 4] * 2], nextn_logical_count=[[1, 2, 3, 4]])
    dump = read_dump(path)
    assert dump.target.tolist() == (2 * np.array(COUNTS)).tolist()
    assert dump.nextn is not None
    assert dump.nextn.tolist() == [[1, 2, 3, 4]]


def test_placements_there_and_back(path: Path) -> None:
    placement = balanced(np.array(COUNTS), 6, 2)
    write_placement(path, placement)
    assert json.loads(path.read_text()) == {"physical_to_logical_map": placement.physical.tolist()}
    assert initial_placement(str(path), SIZES) == placement
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_what_init_expert_location_may_be(path: Path) -> None:
    assert initial_placement("trivial", SIZES) == Placement.trivial(2, 4, 2)
    assert initial_placement(save(path, physical_to_logical_map=MAP), SIZES).physical.tolist() == MAP
    assert initial_placement(save(path, logical_count=COUNTS), SIZES) == balanced(np.array(COUNTS), 6, 2)


def test_rows_of_layers_without_experts(path: Path) -> None:
    """SGLang's files have them."""
    sizes = Sizes(1, 4, 6, 2, dense_layers=1)
    assert initial_placement(save(path, physical_to_logical_map=MAP), sizes).physical.tolist() == MAP[1:]
    save(path, logical_count=[[0] * 4, COUNTS[1]])
    assert initial_placement(str(path), sizes) == balanced(np.array(COUNTS[1:]), 6, 2)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is no JSON: "),
        ("[" * 100_000, "is no JSON: "),
        ("\udcff", "is no JSON: "),
        ("[1]", "is no JSON object with `physical_to_logical_map` or `logical_count`"),
        ("{}", "has neither `physical_to_logical_map` nor `logical_count`: give a file that `nextn eplb"),
        ({"physical_to_logical_map": MAP[:1]}, "has 1 layers, the model has 2 with experts"),
        ({"physical_to_logical_map": [[0, 1, 2, 3]] * 2}, "--ep-num-redundant-experts 0 fits the file"),
        ({"physical_to_logical_map": [MAP[0], [0] * 6]}, ": layer 1 has no slot for expert 1"),
        ({"physical_to_logical_map": [MAP[0], [4] * 6]}, ": layer 1 has expert 4 in slot 0"),
        ({"physical_to_logical_map": [[0, 1], [0]]}, "is not a list of layers, each a list of equally many"),
        ({"physical_to_logical_map": [MAP]}, "is not a list of layers, each"),
        ({"physical_to_logical_map": "MAP"}, "is not a list of layers, each"),
        ({"physical_to_logical_map": [[0.5]]}, "is not a list of layers, each"),
        ({"physical_to_logical_map": [[True]]}, "is not a list of layers, each"),
        ({"physical_to_logical_map": []}, "is not a list of layers, each"),
        ({"logical_count": [[1] * 5] * 2}, "counts 5 experts, the model has 4"),
        ({"logical_count": [[1] * 4]}, "has 1 layers, the model has 2 with experts"),
        ({"logical_count": [[-1] * 4] * 2}, "`logical_count` has a count below 0"),
        ({"logical_count": [[2**60] * 4] * 2}, "has the number 1152921504606846976, which is too large"),
        ({"logical_count": [[10**30] * 4] * 2}, "is not a list of steps, or of layers, each"),
        ({"logical_count": [[2**52] * 4] * 2}, "adds up to more than any server counts"),
        ({"logical_count": None}, "is not a list of steps, or of layers, each"),
    ],
)
def test_wrong_files(path: Path, content: str | dict[str, object], message: str) -> None:
    text = content if isinstance(content, str) else json.dumps(content)
    path.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(ValueError) as error:
        initial_placement(str(path), SIZES)
    assert str(error.value).startswith(str(path))
    assert message in str(error.value)


def test_files_that_cannot_be_read(path: Path) -> None:
    for read in (read_dump, lambda p: initial_placement(str(p), SIZES)):
        with pytest.raises(ValueError, match=r"experts.json cannot be read: No such file"):
            read(path)
        with pytest.raises(ValueError, match="cannot be read: Is a directory"):
            read(path.parent)
    save(path, physical_to_logical_map=MAP)
    with pytest.raises(ValueError, match="has no `logical_count`: give the JSON file that a server wrote"):
        read_dump(path)
    save(path, logical_count=COUNTS, nextn_logical_count=[[1], [1, 2]])
    with pytest.raises(ValueError, match="`nextn_logical_count` is not a list of"):
        read_dump(path)


def test_what_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError):
        write_whole(tmp_path / "folder", b"x")
    assert [p.name for p in tmp_path.iterdir()] == ["folder"]
