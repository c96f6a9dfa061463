from __future__ import annotations

import pytest

from nextn.bench.prompts import heldout_prompts


def test_prompts_are_code_and_all_different() -> None:
    prompts = heldout_prompts(64)
    assert len(set(prompts)) == 64
    assert all("def " in p or "class " in p for p in prompts)
    assert heldout_prompts(3) == prompts[:3]


def test_too_many() -> None:
    with pytest.raises(ValueError, match="100000 prompts were requested; there are only 64"):
        heldout_prompts(100_000)
