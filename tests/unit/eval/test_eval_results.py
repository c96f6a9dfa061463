"""Scores side by side: what is read from lm-eval's results, what differs, and the table."""

from __future__ import annotations

import dataclasses
from typing import Any

from nextn.eval.results import Results, Run, TaskResult
from nextn.eval.table import WITH, WITHOUT, table, verdict

# The shape of what lm-eval's `evaluate` gives for a group of two tasks.
FOUND: dict[str, Any] = {
    "results": {
        "sums": {"alias": "sums", "acc,none": 0.5, "acc_stderr,none": "N/A"},
        "small": {"alias": " - small", "acc,none": 0.75, "acc_stderr,none": 0.1, "acc_norm,none": 0.25},
        "large": {"alias": " - large", "exact_match,strict-match": 1, "exact_match_stderr,strict-match": 0.0},
    },
    "samples": {
        "small": [{"doc_id": 0, "resps": [[(-1.5, False)], [(-0.5, True)]]}],
        "large": [{"doc_id": 0, "resps": [["a"]]}, {"doc_id": 1, "resps": [["b"]]}],
    },
}


def run(seconds: float = 1.0, accept_length: float | None = None) -> Run:
    return dataclasses.replace(Run.of(FOUND, seconds), accept_length=accept_length)


def changed(answers: bool = False) -> Run:
    """Another score, and with `answers` another text behind it."""
    one = run(2.0)
    scores = {**one.scores, ("small", "acc"): 0.5}
    texts = {**one.answers, ("large", 1): [["c"]]} if answers else one.answers
    return dataclasses.replace(one, scores=scores, answers=texts)


def results(*runs: Run) -> Results:
    sides = [WITHOUT, WITH] if len(runs) == 2 else ["score"]
    return Results("m", sides, [TaskResult("sums", runs)], {"limit": 3})


def test_what_is_read_from_lm_eval() -> None:
    assert run().scores == {
        ("sums", "acc"): 0.5,
        ("small", "acc"): 0.75,
        ("small", "acc_norm"): 0.25,
        ("large", "exact_match (strict-match)"): 1.0,
    }
    assert list(run().answers) == [("small", 0), ("large", 0), ("large", 1)]


def test_the_same() -> None:
    same = results(run(), run(2.0, 1.75))
    assert not same.differ
    assert verdict(same) == (
        "4 scores compared, 0 differ; texts and loglikelihoods of 3 documents compared, 0 differ"
    )
    assert table(same, whole=False).splitlines() == [
        "| task | metric | without MTP | with MTP | difference | seconds, without MTP | seconds, with MTP "
        "| accept length |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
        "| sums | acc | 0.5000 | 0.5000 | 0 | 1.0 | 2.0 | 1.75 |",
    ]
    # The parts of a group have no times of their own.
    assert table(same, whole=True).splitlines()[3] == "| small | acc | 0.7500 | 0.7500 | 0 |  |  |  |"


def test_a_difference() -> None:
    score = results(run(), changed())
    assert score.differ
    assert score.tasks[0].differing_scores == [("small", "acc")]
    assert verdict(score).startswith("4 scores compared, 1 differ; ")
    assert verdict(score).endswith("3 documents compared, 0 differ")
    assert "| small | acc | 0.7500 | 0.5000 | -0.2500 |" in table(score, whole=True)
    assert results(run(), changed(answers=True)).tasks[0].differing_answers == 1


def test_a_score_or_an_answer_that_one_side_lacks_differs() -> None:
    less = dataclasses.replace(run(), scores={("sums", "acc"): 0.5}, answers={})
    task = results(run(), less).tasks[0]
    assert len(task.differing_scores) == 3
    assert task.differing_answers == 3
    assert results(less, run()).tasks[0].differing_answers == 3


def test_one_server_alone() -> None:
    one = results(run())
    assert not one.differ
    assert verdict(one) == "3 documents"
    head, _, row = table(one, whole=False).splitlines()
    assert head == "| task | metric | score | seconds, score | accept length |"
    assert row == "| sums | acc | 0.5000 | 1.0 |  |"


def test_the_record() -> None:
    found = results(run(), changed(answers=True)).record()
    assert found["limit"] == 3
    (task,) = found["tasks"]
    assert task["scores"][1] == {"task": "small", "metric": "acc", "values": [0.75, 0.5]}
    assert (task["documents"], task["differing_answers"], task["seconds"]) == (3, 1, [1.0, 2.0])
