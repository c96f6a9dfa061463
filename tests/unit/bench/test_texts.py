"""Texts that must be the same, and the first place where they are not."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nextn.bench.texts import Difference, Texts


def test_same_texts() -> None:
    texts = Texts()
    for where in ("without", "with"):
        for prompt, text in enumerate(["one", "two", "two"]):
            texts.add(prompt, text, where)
    assert (texts.compared, texts.prompts, texts.differences) == (6, 3, [])


def test_first_difference_is_shown_with_both_texts() -> None:
    texts = Texts()
    texts.add(4, "return total\n", "without MTP")
    texts.add(4, "return total\n", "with MTP, round 1")
    texts.add(4, "return tutal\n", "with MTP, round 2")
    texts.add(4, "raise", "with MTP, round 3")
    first, second = texts.differences
    assert first.position == 8
    assert second.position == 1
    shown = str(first)
    assert "prompt 4" in shown
    assert "character 8" in shown
    assert "without MTP: ...'return t' | 'otal\\n'" in shown
    assert "with MTP, round 2: ...'return t' | 'utal\\n'" in shown


@given(st.text(), st.text(), st.text())
def test_position_is_the_end_of_what_is_common(common: str, a: str, b: str) -> None:
    one, other = common + a, common + b
    texts = Texts()
    texts.add(0, one, "one")
    texts.add(0, other, "other")
    assert bool(texts.differences) == (one != other)
    for found in texts.differences:
        at = found.position
        assert one[:at] == other[:at]
        assert one[at : at + 1] != other[at : at + 1]


def test_shown_part_is_short() -> None:
    shown = str(Difference(0, "x" * 5000 + "a" * 5000, "one", "x" * 5000 + "b" * 5000, "other"))
    assert len(shown) < 500
