"""--log-requests: logs a line when a request arrives, and a line when each of its choices ends.

Without the option, lines about the ends of choices are logged at --log-level debug.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Sequence

from nextn.request import SamplingParams
from nextn.server.answers.choice import Choice
from nextn.server.protocol.errors import ApiError

log = logging.getLogger("nextn.request")

SIZES, PARAMETERS, BEGINNINGS, ALL = range(4)
BEGINNING = 256  # tokens of each text that are logged at level BEGINNINGS
DEFAULTS = dataclasses.asdict(SamplingParams())


class RequestLog:
    """Writes the lines. level: SIZES, PARAMETERS, BEGINNINGS or ALL; None without --log-requests. decode:
    turns tokens into text."""

    def __init__(self, level: int | None, decode: Callable[[list[int]], str]) -> None:
        self.level, self.decode = level, decode

    def begun(self, firsts: Sequence[Choice]) -> None:
        """Logs the arrival of a request. firsts: the first choice for each of its prompts."""
        if self.level is None or not log.isEnabledFor(logging.INFO):
            return
        for choice in firsts:
            said = f"Received request, id: {choice.id!r}, #prompt-token: {choice.prompt_tokens}"
            fields: dict[str, object] = {"id": choice.id, "prompt_tokens": choice.prompt_tokens}
            if self.level >= PARAMETERS:
                params = dataclasses.asdict(choice.request.params)
                fields["params"] = {k: v for k, v in params.items() if v != DEFAULTS[k]}
                said += f", params: {fields['params']}"
            if self.level >= BEGINNINGS:
                fields["prompt"] = self._text(choice.request.tokens)
                said += f", prompt: {fields['prompt']!r}"
            log.info(said, extra={"fields": fields})

    def finished(self, choice: Choice, arrival: float) -> None:
        self._ended(choice, arrival, lambda: f"Finished request, {summary(choice, arrival)}", {})

    def ended_early(self, choice: Choice, arrival: float, error: ApiError | None) -> None:
        why = "the client disconnected" if error is None else str(error)
        self._ended(
            choice, arrival,
            lambda: f"Request ended early, id: {choice.id!r}, #prompt-token: {choice.prompt_tokens}, "
            f"#output-token: {choice.completion_tokens}, why: {why}",
            {"why": why},
        )  # fmt: skip

    def _ended(
        self, choice: Choice, arrival: float, words: Callable[[], str], fields: dict[str, object]
    ) -> None:
        level = logging.DEBUG if self.level is None else logging.INFO
        if not log.isEnabledFor(level):
            return
        said = words()
        fields = {**measured(choice, arrival), **fields}
        if self.level is not None and self.level >= BEGINNINGS:
            fields["text"] = self._text(choice.tokens)
            said += f", text: {fields['text']!r}"
        log.log(level, said, extra={"fields": fields})

    def _text(self, tokens: list[int]) -> str:
        return self.decode(tokens if self.level == ALL else tokens[:BEGINNING])


def summary(choice: Choice, arrival: float) -> str:
    """The text of the line about a finished choice."""
    seconds = choice.last_output - arrival
    return (
        f"id: {choice.id!r}, #prompt-token: {choice.prompt_tokens}, "
        f"#cached-token: {choice.cached_tokens}, #output-token: {choice.completion_tokens}, "
        f"finish reason: {choice.finish_reason}, ttft (ms): {(choice.first_output - arrival) * 1e3:.1f}, "
        f"e2e (ms): {seconds * 1e3:.1f}, throughput (token/s): {choice.completion_tokens / seconds:.1f}, "
        f"accept len: {choice.spec.accept_length:.2f}, accepted per step: {choice.spec.histogram}"
    )


def measured(choice: Choice, arrival: float) -> dict[str, object]:
    """The line's values as fields of a JSON line. Times are in seconds, or None if the choice never began."""
    begun = choice.first_output > 0
    return {
        "id": choice.id,
        "prompt_tokens": choice.prompt_tokens,
        "cached_tokens": choice.cached_tokens,
        "output_tokens": choice.completion_tokens,
        "finish_reason": choice.finish_reason,
        "queue_time": choice.queued if begun else None,
        "ttft": choice.first_output - arrival if begun else None,
        "e2e": choice.last_output - arrival if begun else None,
        "accept_length": choice.spec.accept_length,
        "accepted_per_step": choice.spec.histogram,
    }
