"""Errors as the OpenAI API words them: {"error": {"message", "type", "param", "code"}}."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

SHUTTING_DOWN = "shutting_down"


class ErrorBody(msgspec.Struct):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorResponse(msgspec.Struct):
    error: ErrorBody


class ApiError(Exception):
    """What a client is told instead of an answer."""

    def __init__(
        self,
        status: int,
        message: str,
        type: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.code = status, code
        self.headers = dict(headers or {})
        self.body = msgspec.json.encode(ErrorResponse(ErrorBody(message, type, param, code)))


def bad_request(message: str, param: str | None = None) -> ApiError:
    return ApiError(400, message, param=param)


def unavailable(message: str, code: str) -> ApiError:
    return ApiError(503, message, "service_unavailable", code=code, headers={"Retry-After": "1"})


def no_engine() -> ApiError:
    return unavailable("the engine is not running; it is being started", "engine_unavailable")


def engine_dead(message: str) -> ApiError:
    return ApiError(500, message, "engine_dead", code="engine_dead")


def overdue(seconds: float) -> ApiError:
    message = f"the request was not done after {seconds:g} s (--request-timeout)"
    return ApiError(504, message, "timeout", code="request_timeout")


def ended_by_request() -> ApiError:
    return ApiError(499, "it was ended by /abort_request", code="aborted")


def shut_down() -> ApiError:
    return unavailable("the server was shut down before this was finished", SHUTTING_DOWN)
