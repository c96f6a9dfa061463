"""The grammar libraries, each against the other and against jsonschema: what one allows the other takes."""

from __future__ import annotations

import importlib.util
import json
import random
import re

import jsonschema
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.grammars import compiled

from nextn.config import EMBEDDED, model_folder
from nextn.constraint import Constraint
from nextn.grammar.backends import check_backend, make_backend
from nextn.grammar.base import BOUNDED, Vocabulary
from nextn.tokenizer.tokenizer import Tokenizer

EOS = 1
SIZE = 4100  # four rows more than the tokenizer has tokens
BACKENDS = [name for name in ("llguidance", "xgrammar") if importlib.util.find_spec(name)]
both = pytest.mark.parametrize("name", BACKENDS)
tokenizer = Tokenizer.from_folder(model_folder(EMBEDDED))
libraries = {}
PRINTABLE = re.compile(rb"[ -\[\]-~]*").fullmatch


def library(name, any_whitespace=False):
    if (name, any_whitespace) not in libraries:
        vocabulary = Vocabulary(model_folder(EMBEDDED), SIZE, [EOS], any_whitespace)
        libraries[name, any_whitespace] = make_backend(name, vocabulary)
    return libraries[name, any_whitespace]


def begin(name, kind, text):
    return compiled(library(name), Constraint(kind, text)).begin()


def walk(grammar, seed, most=400):
    """A text that the grammar allows, drawn token by token; None if it does not end. Short tokens are rare in
    a vocabulary: half of the time one is drawn among those that are no longer than the shortest. Plain
    ones are preferred: in strings of bounded length XGrammar allows control characters and ill-formed UTF-8,
    and no escapes."""
    rng = random.Random(seed)
    tokens: list[int] = []
    for _ in range(most):
        mask = grammar.mask()
        assert mask.shape == (SIZE,)
        assert mask.dtype == np.bool_
        assert not mask[EOS]
        found = mask.nonzero()[0].tolist()
        if grammar.accepting and (not found or rng.random() < 0.5):
            return tokens
        assert found, "the grammar has no way on"
        found = [t for t in found if PRINTABLE(tokenizer.token_bytes()[t])] or found
        if rng.random() < 0.6:
            shortest = min(len(tokenizer.token_bytes()[t]) for t in found)
            found = [t for t in found if len(tokenizer.token_bytes()[t]) == shortest]
        tokens.append(rng.choice(found))
        assert grammar.advance(tokens[-1:]) == 1
    return None


def accepts(grammar, tokens):
    return grammar.advance(tokens) == len(tokens) and grammar.accepting


CASES = [
    ("regex", r"[a-z]{2,5}(-[0-9]{2}){1,3}", "ab-12-34", "ab-1"),
    ("choice", '["yes", "no", "\\"perhaps\\"\\n"]', '"perhaps"\n', "maybe"),
    ("ebnf", 'root ::= "a" item* "z"\nitem ::= "b" | "cd" [0-9]', "abcd7bz", "acz"),
    ("lark", 'start: "x" N "y"\nN: /[0-9]{1,4}/', "x123y", "xy"),
    ("json_schema", '{"type": "array", "items": {"type": "integer"}, "maxItems": 3}', "[1,2,3]", "[1,2,3,4]"),
]


@both
@pytest.mark.parametrize(("kind", "text", "good", "bad"), CASES, ids=[c[0] for c in CASES])
def test_kinds(name, kind, text, good, bad):
    assert accepts(begin(name, kind, text), tokenizer.encode(good, False))
    assert not accepts(begin(name, kind, text), tokenizer.encode(bad, False))
    for seed in range(5):
        tokens = walk(begin(name, kind, text), seed)
        if tokens is None:
            continue
        assert all(accepts(begin(other, kind, text), tokens) for other in BACKENDS), tokenizer.decode(tokens)
        if kind == "regex":
            assert re.fullmatch(text, tokenizer.decode(tokens))


@both
def test_structural_tags(name):
    schema = {"type": "object", "properties": {"q": {"type": "integer"}}, "required": ["q"]}
    schema["additionalProperties"] = False
    structures = [{"begin": "<f>", "schema": schema, "end": "</f>"}]
    text = json.dumps({"type": "structural_tag", "structures": structures, "triggers": ["<f>"]})
    for good in ("plain words", 'so: <f>{"q":3}</f> and <f>{"q":-1}</f>'):
        assert accepts(begin(name, "structural_tag", text), tokenizer.encode(good, False)), good
    bad = tokenizer.encode('<f>{"r":3}', False)
    grammar = begin(name, "structural_tag", text)
    assert grammar.advance(bad) < len(bad)


@both
def test_special_tokens_are_never_allowed(name):
    grammar = begin(name, "regex", r"(.|\n)*")
    special = [tokenizer._backend.token_to_id(t) for t in ("<｜User｜>", "<｜Assistant｜>")]
    mask = grammar.mask()
    assert not mask[special].any()
    assert not mask[tokenizer.vocab_size :].any()
    assert grammar.advance(special) == 0
    assert mask.sum() > 4000


# An array of integers or of one string that is written like whitespace in XGrammar's notation
ARRAY = {"type": "array", "items": {"anyOf": [{"type": "integer"}, {"const": "[ \\n\\r\\t]*"}]}}
TAG = {"structures": [{"begin": "<f>", "schema": ARRAY, "end": "</f>"}], "triggers": ["<f>"]}
AROUND = {"json_schema": "%s", "structural_tag": "<f>%s</f>", "lark": "x%sy"}


def json_constraint(kind, bounds):
    """bounds: what a grammar of nextn's own has in its schemas, as those of tool calls have."""
    if kind == "lark":
        return Constraint(kind, f'start: "x" %json {json.dumps({**ARRAY, **bounds})} "y"')
    return Constraint(kind, json.dumps(ARRAY if kind == "json_schema" else TAG))


@both
@pytest.mark.parametrize("kind", sorted(AROUND))
@pytest.mark.parametrize("any_whitespace", [False, True])
@pytest.mark.parametrize(
    ("text", "bounded"),
    [
        ("[1,2]", True),
        ("[1, 2]", True),
        ("[ 1 , 2 ]", True),
        ("[ ]", True),
        (json.dumps([1, 2], indent=2), True),
        (json.dumps([1, 2], indent=16), True),
        (json.dumps([1, 2], indent="\t"), True),
        (json.dumps(["[ \\n\\r\\t]*"]), True),
        ("[1,  2]", False),
        ("[1,\n\n2]", False),
        ("[1,\r\n2]", False),
        (json.dumps([1, 2], indent=17), False),
        (json.dumps([1, 2], indent=2) + "\n", None),
    ],
)
def test_whitespace_in_json(name, kind, any_whitespace, text, bounded):
    """True: always allowed, False: where any whitespace is, None: never."""
    constraint = json_constraint(kind, {} if any_whitespace else BOUNDED)
    grammar = compiled(library(name, any_whitespace), constraint).begin()
    tokens = tokenizer.encode(AROUND[kind] % text, False)
    taken = accepts(grammar, tokens) if kind != "structural_tag" else grammar.advance(tokens) == len(tokens)
    assert taken == (bounded is not None and (bounded or any_whitespace))


@both
def test_a_grammar_of_the_client_keeps_its_whitespace(name):
    grammar = compiled(library(name), json_constraint("lark", {})).begin()
    assert accepts(grammar, tokenizer.encode("x[1,\n\n2]y", False))


def test_a_schema_does_not_undo_the_bound():
    schema = {**ARRAY, "x-guidance": {"whitespace_flexible": True}}
    grammar = begin("llguidance", "json_schema", json.dumps(schema))
    assert not accepts(grammar, tokenizer.encode("[1,\n\n2]", False))


@both
@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("json_schema", '{"type": "nothing"}'),
        ("json_schema", '{"$ref": "#/$defs/missing"}'),
        ("regex", "(("),
        ("ebnf", 'root ::= "a" missing'),
        ("ebnf", 'root ::= "a'),
        ("lark", "start: missing"),
        ("structural_tag", '{"structures": [{"begin": "<f>", "end": ""}], "triggers": ["<g>"]}'),
    ],
)
def test_what_is_not_valid_is_a_value_error(name, kind, text):
    with pytest.raises(ValueError, match=f"^{kind}: "):
        begin(name, kind, text)


@both
@given(st.data())
@settings(max_examples=20, deadline=None)
def test_going_back_leaves_no_trace(name, data):
    """Whatever was tried, the mask is that of a grammar that went straight there."""
    kind, text, *_ = data.draw(st.sampled_from(CASES))
    grammar, there = begin(name, kind, text), []
    for _ in range(data.draw(st.integers(1, 8))):
        found = grammar.mask().nonzero()[0].tolist()
        if not found:
            break
        there.append(data.draw(st.sampled_from(found[:50])))
        assert grammar.advance([there[-1]]) == 1
        tried = data.draw(st.lists(st.integers(2, 300), max_size=3))
        grammar.rollback(grammar.advance(tried))
        straight = begin(name, kind, text)
        assert straight.advance(there) == len(there)
        assert (grammar.mask() == straight.mask()).all()
        assert grammar.accepting == straight.accepting


names = st.sampled_from(["a", "b_2", "Über", "x y", '"'])
flat = st.one_of(
    st.just({"type": "boolean"}), st.just({"type": "null"}),
    st.integers(-50, 50).flatmap(
        lambda low: st.integers(0, 200).map(lambda n: {"type": "integer", "minimum": low, "maximum": low + n})
    ),
    st.integers(0, 3).map(lambda n: {"type": "string", "minLength": n, "maxLength": n + 4}),
    # No escapes: XGrammar takes one spelling of a listed string, llguidance any that JSON has.
    st.lists(st.sampled_from(["red", "grün", "7", 7, None, True]), min_size=1, unique_by=repr).map(
        lambda values: {"enum": values}
    ),
    st.just({"type": "string", "pattern": "^[ab]{2}-[0-9]+$"}),
)  # fmt: skip


def nest(inner):
    objects = st.dictionaries(names, inner, min_size=1, max_size=3).flatmap(
        lambda properties: st.sets(st.sampled_from(sorted(properties))).map(
            lambda required: {
                "type": "object", "properties": properties,
                "required": [n for n in properties if n in required], "additionalProperties": False,
            }
        )
    )  # fmt: skip
    arrays = st.tuples(inner, st.integers(0, 2), st.integers(0, 2)).map(
        lambda a: {"type": "array", "items": a[0], "minItems": a[1], "maxItems": a[1] + a[2]}
    )
    return objects | arrays | st.lists(inner, min_size=1, max_size=2).map(lambda many: {"anyOf": many})


schemas = st.recursive(flat, nest, max_leaves=4)


@both
@given(schemas, st.integers(0, 2**32))
@settings(max_examples=40, deadline=None)
def test_texts_by_a_schema_are_valid_and_the_other_library_takes_them(name, schema, seed):
    text = json.dumps(schema)
    tokens = walk(begin(name, "json_schema", text), seed)
    if tokens is None or re.search(r"-0\b", tokenizer.decode(tokens)):  # llguidance alone allows -0
        return
    jsonschema.validate(json.loads(tokenizer.decode(tokens)), schema)
    for other in BACKENDS:
        assert accepts(begin(other, "json_schema", text), tokens), (other, tokenizer.decode(tokens))


def test_a_library_that_is_missing_is_named(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    check_backend("none")
    with pytest.raises(ValueError, match=r"--grammar-backend xgrammar: .* pip install 'nextn\[xgrammar\]'"):
        check_backend("xgrammar")
