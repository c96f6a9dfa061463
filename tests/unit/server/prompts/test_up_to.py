"""Free text up to a mark, or without it, as a regular expression."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nextn.server.parsers.tools import FORMATS
from nextn.server.prompts.up_to import up_to, without

MARKS = sorted({"</think>", *(form.spelling.trigger for form in FORMATS.values())})
MARKS += sorted({form.spelling.pair.close for form in FORMATS.values() if form.spelling.pair is not None})


@pytest.mark.parametrize("mark", MARKS)
@given(data=st.data())
def test_texts(mark: str, data: st.DataObject) -> None:
    pieces = st.sampled_from([mark, mark[:-1], mark[1:], mark[:3], "<", "</", ">", "a", "\n", "é"])
    text = "".join(data.draw(st.lists(pieces, max_size=7)))
    assert bool(re.fullmatch(without(mark), text)) is (mark not in text)
    assert bool(re.fullmatch(up_to(mark), text)) is (text.find(mark) == len(text) - len(mark) >= 0)
