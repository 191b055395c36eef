"""JSON in and out of HTTP bodies."""

from __future__ import annotations

import json
from typing import Any

from starlette.requests import Request

from mansard.serving.api_errors import ApiError


def to_json(value: Any) -> bytes:
    """UTF-8. Surrogates that stand alone, which a text can have and UTF-8 cannot, become question marks."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


async def read_object(request: Request, most: int) -> dict[str, Any]:
    """The JSON object in a request's body of at most that many bytes.

    Raises ApiError 413 for a longer one, and 400 for what is no JSON object.
    """
    too_long = ApiError(413, f"the body has more than {most} bytes", code="body_too_long")
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared[:20]) > most:
        raise too_long
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > most:
            raise too_long
    try:
        value = json.loads(body, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise ApiError(400, f"the body is not valid JSON: {error}", code="invalid_json") from error
    if not isinstance(value, dict):
        raise ApiError(400, f"the body is a JSON {type(value).__name__}, not an object", code="invalid_json")
    return value


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")
