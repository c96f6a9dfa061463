"""Files of counts and of placements, in SGLang's JSON forms.

    {"logical_count": [[9, 0, ...], ...]}            rows that each expert had, by layer; or a table per step
    {"physical_to_logical_map": [[0, 1, ...], ...]}  the expert in each slot, by layer

The first is what the recorder of expert distributions dumps; nextn adds the NextN layers' counts as
`nextn_logical_count`. Both are values of --init-expert-location. Other keys are ignored.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nextn.distributed.eplb import balanced
from nextn.distributed.placement import Counts, Placement
from nextn.whole_file import write_whole

COUNTS, NEXTN_COUNTS, MAP = "logical_count", "nextn_logical_count", "physical_to_logical_map"
TRIVIAL = "trivial"
LARGEST_TOTAL = 2**53  # maximum sum of counts, because they are divided as f64


@dataclass(frozen=True)
class Dump:
    """Number of rows of each expert, [layers, experts]: for the target, and for NextN layers if counted."""

    target: Counts
    nextn: Counts | None


@dataclass(frozen=True)
class Sizes:
    """The sizes that a placement must fit: the model's layers with experts, its experts, and the options.

    `dense_layers`: layers without experts, which come first. SGLang's files have rows for them too. `nodes`,
    `groups`: for plans, see `nextn.distributed.eplb.balanced`.
    """

    layers: int
    experts: int
    physical: int
    shards: int
    dense_layers: int = 0
    nodes: int = 1
    groups: int = 1


def read_dump(path: Path) -> Dump:
    """Raises ValueError with the file's name if it is not a dump of counts."""
    content = read_object(path)
    if COUNTS not in content:
        raise ValueError(
            f"{path} has no `{COUNTS}`: give the JSON file that a server wrote at "
            f"/dump_expert_distribution_record"
        )
    nextn = content.get(NEXTN_COUNTS)
    return Dump(
        counts_of(path, COUNTS, content[COUNTS]),
        None if nextn is None else counts_of(path, NEXTN_COUNTS, nextn),
    )


def initial_placement(value: str, sizes: Sizes) -> Placement:
    """The placement of --init-expert-location: `trivial`, a file with a map, or a file with counts, from
    which it is planned. Raises ValueError for a file that is neither, or of another model."""
    if value == TRIVIAL:
        return Placement.trivial(sizes.layers, sizes.experts, sizes.physical - sizes.experts)
    path = Path(value)
    content = read_object(path)
    if MAP in content:
        rows = of_model(path, MAP, table(path, MAP, content[MAP]), sizes)
        if rows.shape[1] != sizes.physical:
            raise ValueError(
                f"{path} has {rows.shape[1]} physical experts for each layer, the options ask for "
                f"{sizes.physical}: --ep-num-redundant-experts {rows.shape[1] - sizes.experts} fits the file"
            )
        try:
            return Placement(rows, sizes.experts)
        except ValueError as e:
            raise ValueError(f"{path}: {e}") from e
    if COUNTS in content:
        counts = of_model(path, COUNTS, counts_of(path, COUNTS, content[COUNTS]), sizes)
        if counts.shape[1] != sizes.experts:
            raise ValueError(f"{path} counts {counts.shape[1]} experts, the model has {sizes.experts}")
        return balanced(counts, sizes.physical, sizes.shards, sizes.nodes, sizes.groups)
    raise ValueError(
        f"{path} has neither `{MAP}` nor `{COUNTS}`: give a file that `nextn eplb --output` or a recorder of "
        f"expert distributions wrote, or `{TRIVIAL}`"
    )


def write_placement(path: Path, placement: Placement) -> None:
    """Writes the file completely or not at all."""
    rows = ",\n".join(f"  {json.dumps(row)}" for row in placement.physical.tolist())
    write_whole(path, f'{{"{MAP}": [\n{rows}\n]}}\n'.encode())


def read_object(path: Path) -> dict[str, Any]:
    """The file's JSON object. Raises ValueError with the file's name."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as e:
        raise ValueError(f"{path} cannot be read: {e.strerror}") from e
    except (ValueError, RecursionError) as e:
        raise ValueError(f"{path} is no JSON: {e}") from e
    if not isinstance(content, dict):
        raise ValueError(f"{path} is no JSON object with `{MAP}` or `{COUNTS}`")
    return content


def counts_of(path: Path, key: str, value: object) -> Counts:
    """[layers, experts]; steps are added up."""
    found = table(path, key, value, dimensions=(2, 3))
    if found.min() < 0:
        raise ValueError(f"{path}: `{key}` has a count below 0")
    if found.sum(dtype=np.float64) >= LARGEST_TOTAL:
        raise ValueError(f"{path}: `{key}` adds up to more than any server counts; record a shorter time")
    return found.sum(axis=0) if found.ndim == 3 else found


def table(path: Path, key: str, value: object, dimensions: tuple[int, ...] = (2,)) -> NDArray[np.int64]:
    """Nested lists of equal lengths, as an array. Raises ValueError with file and key."""
    wanted = "a list of steps, or of layers, " if 3 in dimensions else "a list of layers, "
    try:
        found = np.array(value)
    except (ValueError, OverflowError):  # lists of different lengths; a number beyond every type
        found = np.array(None)
    if found.ndim not in dimensions or found.dtype.kind not in "iu" or found.size == 0:
        raise ValueError(f"{path}: `{key}` is not {wanted}each a list of equally many whole numbers")
    if found.max() > LARGEST_TOTAL:
        raise ValueError(f"{path}: `{key}` has the number {found.max()}, which is too large")
    return found.astype(np.int64)


def of_model(path: Path, key: str, rows: NDArray[np.int64], sizes: Sizes) -> NDArray[np.int64]:
    """The rows of layers with experts."""
    if len(rows) == sizes.layers + sizes.dense_layers:
        return rows[sizes.dense_layers :]
    if len(rows) != sizes.layers:
        raise ValueError(
            f"{path}: `{key}` has {len(rows)} layers, the model has {sizes.layers} with experts; it is of "
            f"another model"
        )
    return rows
