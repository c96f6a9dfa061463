"""Imports point down only, and the engine needs torch, numpy and safetensors alone; triton's kernels, which
are asked for where it is there, triton."""

import ast
import sys
from pathlib import Path

import pytest

import nextn

ROOT = Path(nextn.__file__).parent
# Every room may import itself and those named here.
LEAVES = {"config", "server_config", "request", "draft", "gate", "constraint"}
BELOW = {
    "ops": set(),
    "kvcache": set(),
    "families": set(),
    "layers": {"ops", "families"},
    "models": {"ops", "families", "layers", "kvcache.pool", "kvcache.layout"},
    "speculative": {"ops", "layers", "models", "kvcache"},
    "scheduler": {"kvcache", "speculative"},
    "engine": {"machine", "ops", "families", "layers", "models", "kvcache", "speculative", "scheduler"},
    "tokenizer": set(),
    "grammar": {"tokenizer"},
    "llm": {"engine", "grammar", "tokenizer"},
    "server": {"engine", "scheduler.stats", "grammar", "tokenizer", "models", "families"},
    "bench": {"machine", "tokenizer", "engine", "models", "families", "layers", "ops"},
    "eval": {"bench", "tokenizer"},
    "terminal": {"bench"},
    "utils": {"bench.logged_process"},
}
ENGINE = ("ops", "kvcache", "families", "layers", "models", "speculative", "scheduler", "engine")
ALLOWED = {"torch", "numpy", "safetensors", *sys.stdlib_module_names}


def imports(path):
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (a.name for a in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module


def modules(room):
    folder = ROOT / room
    return sorted(folder.rglob("*.py")) if folder.is_dir() else [ROOT / f"{room}.py"]


@pytest.mark.parametrize("room", BELOW)
def test_imports_point_down(room):
    wrong = []
    for path in modules(room):
        for name in imports(path):
            if not name.startswith("nextn."):
                continue
            inside = name.removeprefix("nextn.")
            top = inside.split(".")[0]
            allowed = (
                top == room
                or top in LEAVES
                or any(inside == b or inside.startswith(b + ".") for b in BELOW[room])
            )
            if not allowed:
                wrong.append(f"{path.relative_to(ROOT)} imports {name}")
    assert not wrong


@pytest.mark.parametrize("room", ENGINE)
def test_the_engine_needs_torch_numpy_safetensors(room):
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in modules(room)
        for name in imports(path)
        if name.split(".")[0]
        not in ALLOWED | {"nextn"} | ({"triton"} if path.parent.name == "triton" else set())
    ]
    assert not wrong


def test_every_room_is_listed():
    found = {p.name for p in ROOT.iterdir() if p.is_dir() and p.name not in ("__pycache__", "data")}
    assert found - {"cli"} <= set(BELOW)
