"""nextn token-map: from a corpus to a file that an engine takes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nextn.cli import main
from nextn.config import EMBEDDED, model_folder
from nextn.llm import LLM
from nextn.request import SamplingParams
from nextn.tokenizer import Tokenizer
from nextn.tokenizer.frequency import frequent_tokens

TEXT = "def one(self):\n    return self.value\n" * 40 + "import zipfile\n"


def test_the_most_frequent_and_the_end() -> None:
    tokenizer = Tokenizer.from_folder(model_folder(EMBEDDED))
    ids = tokenizer.encode(TEXT, add_special_tokens=False)
    found = frequent_tokens(tokenizer, [TEXT], 5)
    assert len(found.ids) == 5
    assert found.ids == sorted(found.ids)
    assert tokenizer.eos_token_id in found.ids
    others = [ids.count(t) for t in set(ids) - set(found.ids)]
    kept = [ids.count(t) for t in found.ids if t != tokenizer.eos_token_id]
    assert min(kept) >= max(others)
    assert found.covered == sum(kept) / len(ids)
    everything = frequent_tokens(tokenizer, [TEXT], 10**6)
    assert set(everything.ids) == {*ids, tokenizer.eos_token_id}
    assert everything.covered == 1.0


def test_from_corpus_to_engine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.py").write_text(TEXT)
    (tmp_path / "b.jsonl").write_text(json.dumps({"prompt": "import os\n"}) + "\n")
    out = tmp_path / "hot.json"
    assert main(["token-map", "--size", "64", "--output", str(out), *map(str, tmp_path.glob("[ab].*"))]) == 0
    assert "make 100.00% of the corpus'" in capsys.readouterr().out
    assert [p.name for p in tmp_path.glob("hot*")] == ["hot.json"]
    params = SamplingParams(max_tokens=24, temperature=0)
    prompt = "def one(self):\n"
    with_map = LLM(speculative_token_map=str(out), threads=1).generate(prompt, params)[0]
    assert with_map.token_ids == LLM(speculative_num_steps=0, threads=1).generate(prompt, params)[0].token_ids


@pytest.mark.parametrize(
    ("name", "content", "size", "complaint"),
    [
        ("a.jsonl", '{"text": "x"}\n{\n', "9", "a.jsonl, line 2: not JSON"),
        ("a.jsonl", '{"texts": "x"}\n', "9", "a.jsonl, line 1: no `text` or `prompt`"),
        ("a.txt", "", "9", "the corpus has no tokens"),
        ("a.txt", "x", "1", "a draft vocabulary of 1 tokens is too small"),
    ],
)
def test_mistakes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, content: str, size: str, complaint: str
) -> None:
    (tmp_path / name).write_text(content)
    out = tmp_path / "out.json"
    assert main(["token-map", "--size", size, "--output", str(out), str(tmp_path / name)]) == 2
    assert complaint in capsys.readouterr().err
    assert not out.exists()
