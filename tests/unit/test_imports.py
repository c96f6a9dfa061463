"""Imports point down only and never go round; the engine needs torch, numpy and safetensors alone; triton's
kernels, which are asked for where it is there, triton; ranks that Ray starts, Ray."""

import ast
import functools
import sys
from pathlib import Path

import pytest

import nextn

ROOT = Path(nextn.__file__).parent
# Every room may import itself, the leaves and those named here, or no more than a module of one. A room in a
# room is one of its own.
LEAVES = {
    "checkpoint_error",
    "gguf",
    "option",
    "packaged_models",
    "user_cache",
    "whole_file",
    "parallel_config",
    "config",
    "server_config",
    "request",
    "draft",
    "cutoff",
    "constraint",
    "speculation",
    "speculation_config",
    "stats",
    "expert_load",
    "waits",
    "other_engines",
    "params_check",
    "drafting_state",
    "trace",
    "trace_file",
}
BELOW = {
    "ops": {"machine"},
    "kvcache": set(),
    "families": set(),
    "distributed": {"ops"},
    "layers": {"ops", "families", "distributed"},
    "models": {"ops", "families", "layers", "distributed", "kvcache.pool", "kvcache.layout"},
    "sampling": {"ops"},
    "speculative": {"ops", "layers", "models", "kvcache", "sampling"},
    "scheduler": {"kvcache", "speculative"},
    "engine": {
        "machine", "ops", "families", "distributed", "layers", "models", "kvcache", "sampling", "speculative",
        "scheduler",
    },
    "tokenizer": set(),
    "grammar": {"tokenizer"},
    "llm_inputs": {"server.prompts", "server.protocol", "tokenizer"},
    "llm": {"engine", "grammar", "llm_inputs", "tokenizer"},
    "server": set(),  # what it holds are rooms; from the bottom up:
    "server.protocol": {"disaggregation.remote"},
    "server.parsers": {"tokenizer"},
    "server.prompts": {"server.protocol", "server.parsers", "grammar", "tokenizer"},
    "disaggregation": {"engine", "families.digest", "ops", "scheduler"},
    "server.process": {"server.protocol", "distributed", "disaggregation", "engine", "grammar"},
    "server.answers": {
        "server.protocol", "server.parsers", "server.prompts", "server.process", "disaggregation",
        "tokenizer",
    },
    "server.monitoring": {"server.protocol", "server.process", "server.answers"},
    "server.http": {
        "server.protocol", "server.prompts", "server.process", "server.answers", "server.monitoring",
        "tokenizer",
    },
    "server.web": {
        "server.protocol", "server.process", "server.answers", "server.monitoring", "server.http",
        "tokenizer",
    },
    "server.announce": {"server.process"},
    "server.listen": {"server.process"},
    "server.launch": {"server.process", "server.web", "server.announce", "server.listen", "tokenizer.folder"},
    "bench": {"machine", "tokenizer", "engine", "ops.cpu"},
    "bench.dev": {
        "bench", "machine", "tokenizer", "engine", "families", "distributed", "models", "layers", "ops",
    },
    "eval": {"bench", "tokenizer"},
    "terminal": {"bench"},
    "utils": {"bench"},
    "machine": set(),
    "data": {"eval.programs"},
}  # fmt: skip
# The way in, which leads everywhere
ENTRIES = {"", "cli", "__main__", "launch_server"}
ENGINE = (
    "ops",
    "kvcache",
    "families",
    "distributed",
    "layers",
    "models",
    "sampling",
    "speculative",
    "scheduler",
    "engine",
)
ALLOWED = {"torch", "numpy", "safetensors", *sys.stdlib_module_names}
EXTRA = {"triton": "triton", "ray_ranks.py": "ray"}  # of one folder's files, or of one file


def module_name(path):
    """Below nextn: "server.http.app", "" for nextn itself."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in ROOT.rglob("*.py")}


@functools.cache
def imports(path):
    return list(names_imported(path))


def names_imported(path):
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (a.name for a in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            for a in node.names:
                whole = f"{node.module}.{a.name}"
                yield whole if whole.removeprefix("nextn.") in MODULES else node.module


def own_imports(path):
    """Of modules of nextn, by their names below it."""
    for name in imports(path):
        if name.startswith("nextn."):
            yield name.removeprefix("nextn.")


def within(name, outer):
    return name == outer or name.startswith(outer + ".")


@functools.cache
def room_of(name):
    """The innermost."""
    return max((room for room in {*BELOW, *LEAVES, *ENTRIES} if within(name, room)), key=len, default=None)


def modules(room):
    return [path for name, path in sorted(MODULES.items()) if room_of(name) == room]


@pytest.mark.parametrize("room", [*BELOW, *sorted(LEAVES)])
def test_imports_point_down(room):
    allowed = LEAVES | BELOW.get(room, set()) | {room}
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in modules(room)
        for name in own_imports(path)
        if room_of(name) not in allowed and not any(within(name, module) for module in allowed - BELOW.keys())
    ]
    assert not wrong


def test_no_way_leads_back():
    """Not even between two modules of a room, nor for the sake of types."""
    below = {name: set(own_imports(path)) & MODULES.keys() for name, path in MODULES.items()}
    while free := [name for name, others in below.items() if not others]:
        for name in free:
            del below[name]
        for others in below.values():
            others.difference_update(free)
    assert not below


@pytest.mark.parametrize("room", ENGINE)
def test_the_engine_needs_torch_numpy_safetensors(room):
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in modules(room)
        for name in imports(path)
        if name.split(".")[0] not in ALLOWED | {"nextn", EXTRA.get(path.name), EXTRA.get(path.parent.name)}
    ]
    assert not wrong


def test_few_rooms_draw_in_a_terminal():
    """A server does without rich and prompt_toolkit."""
    wrong = [
        name
        for name, path in MODULES.items()
        if {each.split(".")[0] for each in imports(path)} & {"rich", "prompt_toolkit"}
        and not name.startswith(("terminal.", "bench.", "cli."))
    ]
    assert not wrong


def test_every_module_is_in_a_room():
    assert [name for name in MODULES if room_of(name) is None] == []


def test_few_modules_outside_import_speculation():
    """What the rest of the house has to know of it stays little. Names that users see, in options, metrics
    and answers, are not counted."""
    rooms = {"speculative", "speculation", "draft", "cutoff"}
    knows = {
        str(path.relative_to(ROOT))
        for path in MODULES.values()
        if not rooms & set(path.relative_to(ROOT).with_suffix("").parts)
        and any(within(name, room) for name in own_imports(path) for room in rooms)
    }
    assert 15 < len(knows) <= 36, sorted(knows)
