"""Constraints by XGrammar (Apache-2.0, C++): pushdown automata over bytes, masks half made beforehand."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
import xgrammar
from numpy.typing import NDArray

from nextn.constraint import CompiledGrammar, Constraint, Grammar
from nextn.grammar.base import Vocabulary, compiled_again
from nextn.tokenizer import folder
from nextn.tokenizer.bytelevel import TokenBytes


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
        if constraint.kind == "choice":
            return "root ::= " + " | ".join(map(json.dumps, json.loads(constraint.text)))
        if constraint.kind == "structural_tag":
            return _structural_tag(constraint.text)
        return constraint.text

    def compile(self, kind: str, prepared: str) -> CompiledGrammar:
        try:
            return _Compiled(self._compile(kind, prepared), self.vocabulary, kind, prepared)
        except (RuntimeError, ValueError, TypeError) as e:
            raise ValueError(f"{kind}: {e}") from e

    def _compile(self, kind: str, text: str) -> xgrammar.CompiledGrammar:
        if kind == "json_schema":
            # `strict_mode` would forbid what the schema does not name.
            whitespace = self.vocabulary.whitespace
            separators = None if whitespace else (",", ":")
            return self._compiler.compile_json_schema(
                text, any_whitespace=whitespace, separators=separators, strict_mode=False
            )
        if kind == "regex":
            return self._compiler.compile_regex(text)
        if kind in ("choice", "ebnf"):
            return self._compiler.compile_grammar(text)
        if kind == "lark":
            return self._compiler.compile_lark(text)
        return self._compiler.compile_structural_tag(text)


def _structural_tag(text: str) -> str:
    """SGLang's older notation in the library's own."""
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
        return None  # it has no limits

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
