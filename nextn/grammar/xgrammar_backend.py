"""Constraints by XGrammar (Apache-2.0, C++): pushdown automata over bytes. It computes half of the masks in
advance."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence

import numpy as np
import xgrammar
from numpy.typing import NDArray

from nextn.constraint import CompiledGrammar, Constraint, Grammar
from nextn.grammar.base import BOUNDED, MOST_INDENTATION, Vocabulary, compiled_again
from nextn.tokenizer import folder
from nextn.tokenizer.token_bytes import TokenBytes

LARK_BOUNDED = json.dumps(BOUNDED)[1:-1]
# In the library's serialized grammars, an expression is its type, a length, and that many numbers.
TEXT, CLASS, STAR, EMPTY, RULE, SEQUENCE, CHOICES, REPEAT = 0, 1, 2, 3, 4, 5, 6, 8
ANY = [STAR, 9, 0, 32, 32, 10, 10, 13, 13, 9, 9]  # [ \n\r\t]*, between the parts of JSON


class XGrammar:
    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        backend = folder.read_backend(vocabulary.folder)
        # Special tokens have no bytes here, so no grammar allows them.
        names = TokenBytes(backend, skip_special_tokens=True)
        info = xgrammar.TokenizerInfo(
            [names[i] for i in range(vocabulary.size)],
            vocab_type=xgrammar.VocabType.RAW,
            vocab_size=vocabulary.size,
            stop_token_ids=list(vocabulary.eos_ids),
        )
        self._compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)

    def prepare(self, constraint: Constraint) -> str:
        kind, text = constraint.kind, constraint.text
        if kind == "choice":
            return "root ::= " + " | ".join(map(json.dumps, json.loads(text)))
        if kind in ("regex", "ebnf"):
            return text
        try:
            grammar = _from(kind, text).serialize_json()
        except (RuntimeError, ValueError, TypeError) as e:
            raise ValueError(f"{kind}: {e}") from e
        if kind == "lark":  # a client's own grammar is not changed
            return bounded(grammar) if LARK_BOUNDED in text else grammar
        return grammar if self.vocabulary.any_whitespace else bounded(grammar)

    def compile(self, kind: str, prepared: str) -> CompiledGrammar:
        try:
            return _Compiled(self._compile(kind, prepared), self.vocabulary, kind, prepared)
        except (RuntimeError, ValueError, TypeError) as e:
            raise ValueError(f"{kind}: {e}") from e

    def _compile(self, kind: str, prepared: str) -> xgrammar.CompiledGrammar:
        if kind == "regex":
            return self._compiler.compile_regex(prepared)
        if kind in ("choice", "ebnf"):
            return self._compiler.compile_grammar(prepared)
        return self._compiler.compile_grammar(xgrammar.Grammar.deserialize_json(prepared))


def _from(kind: str, text: str) -> xgrammar.Grammar:
    if kind == "json_schema":
        # `strict_mode` would forbid properties that the schema does not name.
        return xgrammar.Grammar.from_json_schema(text, any_whitespace=True, strict_mode=False)
    if kind == "lark":
        return xgrammar.Grammar.from_lark(text)
    return xgrammar.Grammar.from_structural_tag(_structural_tag(text))


def bounded(grammar: str) -> str:
    """Replaces the library's any-whitespace with JSON_WHITESPACE, in a grammar that it made from a schema.
    The library itself can only limit the number of characters. A `pattern` of the schema equal to
    any-whitespace is replaced too."""
    made = json.loads(grammar)
    data, starts = made["grammar_expr_data"], made["grammar_expr_indptr"]
    exprs = [data[begin:end] for begin, end in zip(starts, [*starts[1:], len(data)], strict=True)]
    rules, n = made["rules"], len(exprs)
    space, indentation = len(rules), len(rules) + 1
    exprs = [[RULE, 1, space] if each == ANY else each for each in exprs]
    exprs += [
        [EMPTY, 0],
        [TEXT, 1, ord(" ")],
        [SEQUENCE, 1, n + 1],
        [TEXT, 1, ord("\n")],
        [REPEAT, 3, indentation, 0, MOST_INDENTATION],
        [SEQUENCE, 2, n + 3, n + 4],
        [CHOICES, 3, n, n + 2, n + 5],
        [CLASS, 5, 0, ord(" "), ord(" "), ord("\t"), ord("\t")],
        [SEQUENCE, 1, n + 7],
        [CHOICES, 1, n + 8],
    ]
    rules += [[name, body, *rules[0][2:]] for name, body in (("json_space", n + 6), ("json_indent", n + 9))]
    made["grammar_expr_data"] = list(itertools.chain(*exprs))
    made["grammar_expr_indptr"] = list(itertools.accumulate(map(len, exprs[:-1]), initial=0))
    return json.dumps(made)


def _structural_tag(text: str) -> str:
    """Converts SGLang's older notation to the library's own."""
    tag = json.loads(text)
    tags = [
        {
            "begin": each["begin"],
            "content": {"type": "json_schema", "json_schema": each.get("schema") or {}},
            "end": each["end"],
        }
        for each in tag["structures"]
    ]
    inside = {"type": "triggered_tags", "triggers": tag["triggers"], "tags": tags}
    return json.dumps({"type": "structural_tag", "format": inside})


class _Compiled:
    def __init__(
        self, compiled: xgrammar.CompiledGrammar, vocabulary: Vocabulary, kind: str, prepared: str
    ) -> None:
        self.compiled, self.vocabulary, self.kind, self.prepared = compiled, vocabulary, kind, prepared

    def __reduce__(self) -> tuple[object, ...]:
        return compiled_again, (XGrammar, self.vocabulary, self.kind, self.prepared)

    def begin(self) -> Grammar:
        return _Grammar(xgrammar.GrammarMatcher(self.compiled), self.vocabulary)


class _Grammar:
    def __init__(self, matcher: xgrammar.GrammarMatcher, vocabulary: Vocabulary) -> None:
        self.matcher, self.vocabulary = matcher, vocabulary
        self._words = np.zeros((1, -(-vocabulary.size // 32)), dtype=np.int32)

    def mask(self) -> NDArray[np.bool_]:
        self.matcher.fill_next_token_bitmask(self._words)
        bits = self._words.view(np.uint8)[0]
        found = np.unpackbits(bits, count=self.vocabulary.size, bitorder="little").view(np.bool_)
        found[list(self.vocabulary.eos_ids)] = False
        return found

    @property
    def failure(self) -> str | None:
        return None  # the library has no limits

    @property
    def accepting(self) -> bool:
        return bool(self.matcher.is_completed())

    def advance(self, tokens: Sequence[int]) -> int:
        for i, token in enumerate(tokens):
            if not self.matcher.accept_token(token):
                return i
        return len(tokens)

    def rollback(self, count: int) -> None:
        self.matcher.rollback(count)
