"""The results of an evaluation: scores side by side, and whether the answers are equal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Run:
    """One task on one server. `scores`: (task, metric) -> value; a group of tasks has its own scores and
    those of its members. `answers`: (task, document) -> texts, or pairs of loglikelihood and "greedy"."""

    scores: Mapping[tuple[str, str], float]
    answers: Mapping[tuple[str, int], Any]
    seconds: float  # spent on requests
    accept_length: float | None = None  # tokens per verify step; None: no drafts, or the server does not say

    @classmethod
    def of(cls, found: Mapping[str, Any], seconds: float) -> Run:
        """Makes a Run from the results of lm-eval's `evaluate`. Keeps the order of the scores."""
        scores = {}
        for task, values in found["results"].items():
            for key, value in values.items():
                metric, _, variant = key.partition(",")
                if variant and not metric.endswith("_stderr"):
                    name = metric if variant == "none" else f"{metric} ({variant})"
                    scores[task, name] = float(value)
        answers = {
            (task, sample["doc_id"]): sample["resps"]
            for task, samples in found.get("samples", {}).items()
            for sample in samples
        }
        return cls(scores, answers, seconds)


@dataclass(frozen=True)
class TaskResult:
    """One requested task on each server: either on one, or on one without MTP and one with it."""

    name: str
    runs: Sequence[Run]

    @property
    def differing_scores(self) -> list[tuple[str, str]]:
        return [key for key, value in self.runs[0].scores.items() if value != self.runs[-1].scores.get(key)]

    @property
    def differing_answers(self) -> int:
        first, last = self.runs[0].answers, self.runs[-1].answers
        return sum(first.get(key) != last.get(key) for key in first.keys() | last.keys())

    def record(self) -> dict[str, Any]:
        """Returns the data for results.json. Lists have one value for each server."""
        return {
            "task": self.name,
            "scores": [
                {"task": task, "metric": metric, "values": [run.scores[task, metric] for run in self.runs]}
                for task, metric in self.runs[0].scores
            ],
            "documents": len(self.runs[0].answers),
            "differing_answers": self.differing_answers,
            "seconds": [round(run.seconds, 3) for run in self.runs],
            "accept_length": [run.accept_length for run in self.runs],
        }


@dataclass(frozen=True)
class Results:
    model: str
    sides: Sequence[str]  # names of the servers
    tasks: Sequence[TaskResult]
    settings: Mapping[str, Any]

    @property
    def differ(self) -> bool:
        """Whether any score differs."""
        return any(task.differing_scores for task in self.tasks)

    def record(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "sides": list(self.sides),
            **self.settings,
            "tasks": [task.record() for task in self.tasks],
        }
