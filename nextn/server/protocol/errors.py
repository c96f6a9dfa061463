"""Errors in the form of the OpenAI API: {"error": {"message", "type", "param", "code"}}."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

SHUTTING_DOWN = "shutting_down"
PROMPT = "prompt"  # the field's name in errors about prompts, see `prompt_in`
LONGEST = 2000  # characters of a message, which may quote the client's text


class ErrorBody(msgspec.Struct):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorResponse(msgspec.Struct):
    error: ErrorBody


class ApiError(Exception):
    """The answer to a request that cannot be served."""

    def __init__(
        self,
        status: int,
        message: str,
        type: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        message = cut(message, LONGEST)
        param = None if param is None else cut(param, LONGEST)
        super().__init__(message)
        self.status, self.type, self.param, self.code = status, type, param, code
        self.headers = dict(headers or {})
        self.body = msgspec.json.encode(ErrorResponse(ErrorBody(message, type, param, code)))

    def __reduce__(self) -> tuple[Any, ...]:
        """For pickle, which would otherwise call ApiError with `args`, the message alone."""
        return ApiError, (self.status, str(self), self.type, self.param, self.code, self.headers)


def cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"


def bad_request(message: str, param: str | None = None) -> ApiError:
    return ApiError(400, message, param=param)


def over_context(message: str, param: str = PROMPT) -> ApiError:
    return ApiError(400, message, param=param, code="context_length_exceeded")


def too_long(characters: int, context: int) -> ApiError:
    """The error for a text with more tokens than the context. Its exact number of tokens is not known."""
    return over_context(
        f"the prompt has {characters} characters, more than {context} tokens; the context length is {context}"
    )


def too_many_tokens(most: int) -> ApiError:
    rule = f"{most} are allowed in one request; send them in several"
    return bad_request(f"the prompts together have more than {most} tokens; {rule}", PROMPT)


@contextlib.contextmanager
def prompt_in(field: str) -> Iterator[None]:
    """Inside this context, errors about prompts name `field` instead of `PROMPT`."""
    try:
        yield
    except ApiError as e:
        if e.param != PROMPT:
            raise
        raise ApiError(e.status, str(e), e.type, field, e.code, e.headers) from e


def unavailable(message: str, code: str) -> ApiError:
    return ApiError(503, message, "service_unavailable", code=code, headers={"Retry-After": "1"})


def no_engine(rank: int | None = None) -> ApiError:
    """rank: the replica that the request named, or None."""
    message = "the engine is not running; it is being started"
    if rank is not None:
        message = f"replica {rank} is not running; try again, or let the server choose another"
    return unavailable(message, "engine_unavailable")


def engine_dead(message: str) -> ApiError:
    return ApiError(500, message, "engine_dead", code="engine_dead")


def overdue(seconds: float) -> ApiError:
    message = f"the request did not finish within {seconds:g} s (--request-timeout)"
    return ApiError(504, message, "timeout", code="request_timeout")


def ended_by_request() -> ApiError:
    return ApiError(499, "the request was aborted by /abort_request", code="aborted")


def shut_down() -> ApiError:
    return unavailable("the server was shut down before the request finished", SHUTTING_DOWN)
