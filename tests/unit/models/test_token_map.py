"""The file of a draft vocabulary: every format, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from nextn.models.token_map import read_token_map

IDS = [7, 0, 99, 3]


def test_every_format(tmp_path: Path) -> None:
    torch.save(torch.tensor(IDS), tmp_path / "tensor.pt")
    torch.save(IDS, tmp_path / "list.pt")
    np.save(tmp_path / "ids.npy", np.array(IDS))
    (tmp_path / "ids.json").write_text(json.dumps(IDS))
    for path in tmp_path.iterdir():
        assert read_token_map(path, 100) == tuple(IDS), path.name


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[1, 100]", r"token id 100; the model's are 0..99"),
        ("[-1, 5]", "token id -1"),
        ("[5, 5]", "contains a token id twice"),
        ("[]", "does not contain a list of token ids"),
        ("[[1], [2]]", "does not contain a list of token ids"),
        ("[1.5]", "does not contain a list of token ids"),
        ("{", "cannot be read"),
    ],
)
def test_refusals(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "map.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=complaint):
        read_token_map(path, 100)


def test_no_file_and_no_pickle(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot be read"):
        read_token_map(tmp_path / "none.json", 100)
    torch.save({"a": Path("x")}, tmp_path / "code.pt")
    with pytest.raises(ValueError, match="cannot be read"):
        read_token_map(tmp_path / "code.pt", 100)


def test_files_that_claim_more_than_they_hold(tmp_path: Path) -> None:
    def npy(name: str, count: int) -> None:
        header = {"descr": "<i8", "fortran_order": False, "shape": (count,)}
        with (tmp_path / name).open("wb") as file:
            np.lib.format.write_array_header_1_0(file, header)

    npy("million-million.npy", 10**12)
    npy("no-number-of-c.npy", 10**25)
    torch.save(torch.tensor([1]).expand(10**12), tmp_path / "one-id-many-times.pt")
    torch.save(torch.empty(10**12, device="meta", dtype=torch.int64), tmp_path / "no-data.pt")
    torch.save(torch.tensor([1, 2]).to_sparse(), tmp_path / "sparse.pt")
    (tmp_path / "deep.json").write_text("[" * 60_000)
    (tmp_path / "digits.json").write_text("[" + "9" * 5000 + "]")
    (tmp_path / "long.json").write_text(" " * 100_000 + "[1]")
    (tmp_path / "empty.pt").write_bytes(b"")
    (tmp_path / "empty.npy").write_bytes(b"")
    for path in tmp_path.iterdir():
        with pytest.raises(ValueError, match=f"--speculative-token-map {path} "):
            read_token_map(path, 100)
