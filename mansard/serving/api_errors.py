"""Errors as OpenAI's API has them: a status, and ``{"error": {"message", "type", "param", "code"}}``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mansard.errors import (
    CallCancelledError,
    DeadlineExceededError,
    InputError,
    MansardError,
    OutOfMemoryError,
    QueueFullError,
)

_TYPES = {
    401: "authentication_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
    503: "service_unavailable_error",
    504: "timeout_error",
}


class ApiError(Exception):
    """A request that is answered with an error; ``param`` is the field that was wrong."""

    def __init__(
        self,
        status: int,
        message: str,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code
        self.headers = dict(headers or {})

    def body(self) -> dict[str, Any]:
        """The answer's JSON value."""
        kind = _TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


def wrong(param: str, message: str, code: str = "invalid_value") -> ApiError:
    """A field of the request is wrong."""
    return ApiError(400, message, param, code)


def unavailable(retry_after: int) -> ApiError:
    """The server is being shut down."""
    headers = {"retry-after": str(retry_after), "connection": "close"}
    return ApiError(503, "the server is shutting down", code="shutting_down", headers=headers)


def from_error(error: MansardError, *, retry_after: int, draining: bool) -> ApiError:
    """What a client is told of an error of the engine. Clients of OpenAI's heed ``x-should-retry``."""
    if isinstance(error, QueueFullError):
        headers = {"retry-after": str(retry_after)}
        return ApiError(429, str(error), code="queue_full", headers=headers)
    if isinstance(error, DeadlineExceededError):
        return ApiError(504, str(error), "deadline", "deadline_exceeded", {"x-should-retry": "false"})
    if isinstance(error, CallCancelledError) or draining:
        return unavailable(retry_after)
    if isinstance(error, InputError):
        return ApiError(400, str(error), code="invalid_value")
    if isinstance(error, OutOfMemoryError):
        return ApiError(503, str(error), code="out_of_memory", headers={"retry-after": str(retry_after)})
    return ApiError(500, f"{type(error).__name__}: {error}", code="device_error")
