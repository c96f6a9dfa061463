"""The tasks in the package: their documents and scores, and lm-eval's reading of them without a network."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nextn.data.eval.documents import compare_lines
from nextn.eval.tasks import FOLDER, SHIPPED


def documents(name: str) -> list[dict[str, Any]]:
    lines = (FOLDER / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize("name", ["next_line", "rest_of_line"])
def test_documents(name: str) -> None:
    docs = documents(name)
    tests = [doc for doc in docs if doc["split"] == "test"]
    examples = [doc for doc in docs if doc["split"] == "fewshot"]
    assert (len(tests), len(examples)) == (100, 5)
    assert len({doc["context"] for doc in docs}) == 105
    assert not {doc["source"] for doc in tests} & {doc["source"] for doc in examples}
    assert len({doc["source"] for doc in tests[:8]}) == 8  # a small --limit sees many files


def test_next_lines_are_alike_but_for_one() -> None:
    docs = documents("next_line")
    for doc in docs:
        choices = doc["choices"]
        assert len({choice.strip() for choice in choices}) == 4
        assert len({len(choice) - len(choice.lstrip()) for choice in choices}) == 1
        seen = {line.strip() for line in doc["context"].splitlines()}
        assert not seen & {choice.strip() for choice in choices}
        assert doc["context"].endswith("\n")
    places = [sum(doc["answer"] == i for doc in docs) for i in range(4)]
    assert min(places) > 10  # no place is right much more often than another


def test_lines_are_cut_after_a_word() -> None:
    for doc in documents("rest_of_line"):
        assert doc["context"][-1].isalnum() or doc["context"][-1] == "_"
        assert len(doc["target"]) > 3
        assert "\n" not in doc["target"]


@pytest.mark.parametrize(
    ("said", "exact", "prefix"),
    [
        (" = read(x)", 1.0, 1.0),
        (" = read(x)  \n    more", 1.0, 1.0),
        (" = read(y)", 0.0, 0.8),
        (" = read(x), 5", 0.0, 1.0),
        ("", 0.0, 0.0),
        ("= read(x)", 0.0, 0.0),
    ],
)
def test_scores_of_a_line(said: str, exact: float, prefix: float) -> None:
    found = compare_lines({"target": " = read(x)"}, [said])
    assert found == {"exact_match": exact, "prefix_match": pytest.approx(prefix)}


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("lm_eval")
    import datasets

    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)


def test_lm_eval_reads_them(offline: None) -> None:
    from nextn.eval.harness import load_tasks

    loaded = load_tasks(SHIPPED, None).load(list(SHIPPED))["tasks"]
    lines, rests = (loaded[name] for name in SHIPPED)
    doc = lines.eval_docs[0]
    assert lines.doc_to_text(doc) == doc["context"]
    assert lines.doc_to_choice(doc) == doc["choices"]
    assert lines.doc_to_target(doc) == doc["answer"]
    assert rests.config.generation_kwargs["until"] == ["\n"]
    assert len(rests.fewshot_docs()) == 5


def test_unknown_tasks_and_missing_data_are_named(
    offline: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from nextn.eval import harness

    task = {"task": "far_away", "dataset_path": "nobody/nothing", "output_type": "generate_until"}
    (tmp_path / "far_away.yaml").write_text(json.dumps(task | {"test_split": "test", "doc_to_text": "x"}))
    manager = harness.TaskManager
    monkeypatch.setattr(harness, "TaskManager", lambda **o: manager(**{**o, "include_defaults": False}))
    with pytest.raises(ValueError, match=r"^--tasks mlmu: lm-eval has no such task"):
        harness.load_tasks(["mlmu"], tmp_path)
    with pytest.raises(
        ValueError, match=r"^--tasks far_away: its data set cannot be loaded .*nobody/nothing"
    ):
        harness.load_tasks(["far_away"], tmp_path)
