"""Constraints by llguidance (MIT, Rust): regular expressions by derivatives, the rest by an Earley parser.

Its matcher never raises: after an error it stays in an error state. So it must only get tokens that it
allows.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import llguidance
import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, StructTag
from numpy.typing import NDArray

from nextn.constraint import CompiledGrammar, Constraint, Grammar
from nextn.grammar.base import BOUNDED, Vocabulary, compiled_again
from nextn.tokenizer import folder

ANY = {"x-guidance": {"whitespace_flexible": True}}
NO_WAY = "NoExtension"  # the library's error for "no token can follow"
# One mask takes at most 50 ms and 40 MiB; the library's own limits allow four times as much. All texts of a
# constraint share one cache, which takes at most 100 MB.
LIMITS = LLParserLimits(step_lexer_fuel=50_000, max_lexer_states=50_000, verbose_errors=False)


class LLGuidance:
    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self._whitespace: dict[str, Any] = ANY if vocabulary.any_whitespace else BOUNDED
        self._tokenizer = LLTokenizer(
            str(vocabulary.folder / folder.TOKENIZER),
            n_vocab=vocabulary.size,
            eos_token=list(vocabulary.eos_ids),
        )

    def compile(self, kind: str, prepared: str) -> CompiledGrammar:
        matcher = LLMatcher(self._tokenizer, prepared, log_level=0, limits=LIMITS)
        if matcher.is_error():
            raise ValueError(f"{kind}: {reason(matcher)}")
        return _Compiled(matcher, self.vocabulary, kind, prepared)

    def prepare(self, constraint: Constraint) -> str:
        kind, text = constraint.kind, constraint.text
        if kind == "json_schema":
            return LLMatcher.grammar_from_json_schema(text, overrides=self._whitespace["x-guidance"])
        if kind == "structural_tag":
            return LLMatcher.grammar_from_lark(self._structural_tag(text))
        try:
            return llguidance.grammar_from(kind, text)  # type: ignore[arg-type]
        except (ValueError, RecursionError) as e:
            raise ValueError(f"{kind}: {e or 'it is nested too deeply'}") from e

    def _structural_tag(self, text: str) -> str:
        """Converts SGLang's `structural_tag`: free text, in which a schema follows each trigger."""
        tag = json.loads(text)
        tags = []
        for each in tag["structures"]:
            trigger = next((t for t in tag["triggers"] if t and each["begin"].startswith(t)), None)
            if trigger is None:
                raise ValueError(f"structural_tag: begin {each['begin']!r} does not start with a trigger")
            schema = {**(each.get("schema") or {}), **self._whitespace}
            tags.append(StructTag(trigger=trigger, begin=each["begin"], grammar=schema, end=each["end"]))
        if not tags:
            raise ValueError("structural_tag: structures is empty")
        return StructTag.to_grammar(tags, assume_special=all(self._is_special(t.trigger) for t in tags))

    def _is_special(self, text: str) -> bool:
        ids = self._tokenizer.tokenize_str(text, parse_special=True)
        return len(ids) == 1 and self._tokenizer.is_special_token(ids[0])


class _Compiled:
    def __init__(self, matcher: LLMatcher, vocabulary: Vocabulary, kind: str, prepared: str) -> None:
        self.matcher, self.vocabulary, self.kind, self.prepared = matcher, vocabulary, kind, prepared

    def __reduce__(self) -> tuple[object, ...]:
        return compiled_again, (LLGuidance, self.vocabulary, self.kind, self.prepared)

    def begin(self) -> Grammar:
        return _Grammar(self.matcher.deep_copy(), self.vocabulary)


class _Grammar:
    def __init__(self, matcher: LLMatcher, vocabulary: Vocabulary) -> None:
        self.matcher, self.vocabulary = matcher, vocabulary

    def mask(self) -> NDArray[np.bool_]:
        bits = np.frombuffer(self.matcher.compute_bitmask(), dtype=np.uint8)
        if self.matcher.is_error():  # it reached one of its limits
            return np.zeros(self.vocabulary.size, dtype=np.bool_)
        found = np.unpackbits(bits, count=self.vocabulary.size, bitorder="little").view(np.bool_)
        found[list(self.vocabulary.eos_ids)] = False
        return found

    @property
    def failure(self) -> str | None:
        if not self.matcher.is_error():
            return None
        why = reason(self.matcher)
        return None if why.startswith(NO_WAY) else f"llguidance reached a limit: {why}"

    @property
    def accepting(self) -> bool:
        return not self.matcher.is_error() and self.matcher.is_accepting()

    def advance(self, tokens: Sequence[int]) -> int:
        return self.matcher.try_consume_tokens(list(tokens))

    def rollback(self, count: int) -> None:
        self.matcher.rollback(count)


def reason(matcher: LLMatcher) -> str:
    return matcher.get_error().replace("<non-verbose/>", "").strip()
