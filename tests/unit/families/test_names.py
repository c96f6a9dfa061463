"""A family's tensor names are spelled in its file alone."""

import ast
from pathlib import Path

import pytest

import nextn
from nextn.families import deepseek_v3
from nextn.families.names import numbered

ROOT = Path(nextn.__file__).parent
# Names of other things too
GENERAL = {"model", "layers", "weight", "mlp", "gate", "experts", "shared_experts", "norm", "head"}
SPELLED = {
    part
    for names in (vars(deepseek_v3.NAMES), vars(deepseek_v3.MTP))
    for name in names.values()
    if isinstance(name, str)
    for part in name.split(".")
    if part and "{" not in part
} - GENERAL | {"model.layers.", "mlp.gate"}


def strings(path):
    """All but docstrings, and what names a field of a C struct."""
    tree = ast.parse(path.read_text())
    skipped = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)} | {
        id(node)
        for statement in ast.walk(tree)
        if isinstance(statement, ast.Assign) and getattr(statement.targets[0], "id", "") == "_fields_"
        for node in ast.walk(statement)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in skipped:
            yield node.value


def test_the_words_are_there():
    assert {"self_attn", "o_proj", "eh_proj", "embed_tokens", "e_score_correction_bias"} <= SPELLED


@pytest.mark.parametrize("room", ["models", "layers", "engine", "cli", "ops", "kvcache", "speculative"])
def test_nobody_else_spells_them(room):
    for path in (ROOT / room).rglob("*.py"):
        for text in strings(path):
            assert not [name for name in SPELLED if name in text], (path, text)


def test_numbers_in_a_name():
    expert = numbered("model.layers.{layer}.mlp.experts.{expert}.")
    assert expert.match("model.layers.3.mlp.experts.17.up_proj.weight").groups() == ("3", "17")
    assert not expert.match("model.layers.3.mlp.shared_experts.up_proj.weight")
