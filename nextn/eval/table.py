"""Makes the Markdown table: one line for each score, without MTP, with MTP, and the difference."""

from __future__ import annotations

from collections.abc import Sequence

from nextn.eval.results import Results, TaskResult

WITHOUT, WITH = "without MTP", "with MTP"


def table(results: Results, whole: bool) -> str:
    """Makes the table. `whole`: includes the members of a group of tasks, not only the group's own scores."""
    both = len(results.sides) == 2
    head = ["task", "metric", *results.sides, *(["difference"] if both else [])]
    head += [f"seconds, {side}" for side in results.sides] + ["accept length"]
    rows = [row for task in results.tasks for row in _rows(task, whole)]
    return "\n".join(_line(cells) for cells in (head, ["---"] * 2 + ["---:"] * (len(head) - 2), *rows)) + "\n"


def _rows(task: TaskResult, whole: bool) -> list[list[str]]:
    rows = []
    for name, metric in task.runs[0].scores:
        if name != task.name and not whole:
            continue
        values = [run.scores[name, metric] for run in task.runs]
        row = [name, metric, *(f"{value:.4f}" for value in values)]
        if len(values) == 2:
            row.append(f"{values[1] - values[0]:+.4f}" if values[1] != values[0] else "0")
        own = name == task.name  # only the whole task has times
        row += [f"{run.seconds:.1f}" if own else "" for run in task.runs]
        length = task.runs[-1].accept_length
        row.append(f"{length:.2f}" if own and length is not None else "")
        rows.append(row)
    return rows


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def verdict(results: Results) -> str:
    """One line that says whether MTP changed any result."""
    documents = sum(len(task.runs[0].answers) for task in results.tasks)
    if len(results.sides) == 1:
        return f"{documents} documents"
    scores = sum(len(task.runs[0].scores) for task in results.tasks)
    wrong = sum(len(task.differing_scores) for task in results.tasks)
    answers = sum(task.differing_answers for task in results.tasks)
    return (
        f"{scores} scores compared, {wrong} differ; "
        f"texts and loglikelihoods of {documents} documents compared, {answers} differ"
    )
