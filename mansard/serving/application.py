"""The application: paths, keys and errors."""

from __future__ import annotations

import hmac
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from mansard.serving.api_errors import ApiError
from mansard.serving.chat_fields import chat_job
from mansard.serving.completion_fields import completion_job
from mansard.serving.json_body import to_json
from mansard.serving.service import TextService
from mansard.serving.text_endpoint import TextEndpoint, error_response

PATHS = "/v1/models, /v1/completions, /v1/chat/completions, /health and /metrics"


def create_app(service: TextService) -> Starlette:
    """An ASGI application for the service, which it closes when it ends."""
    created = int(time.time())

    async def models(_: Request) -> Response:
        return _json({"object": "list", "data": [_model(service, created)]})

    async def model(request: Request) -> Response:
        name = request.path_params["name"]
        if name != service.options.name:
            raise ApiError(404, f"there is no model {name!r}", "model", "model_not_found")
        return _json(_model(service, created))

    async def health(_: Request) -> Response:
        if service.draining or not service.engine.running:
            return _json({"status": "shutting down" if service.draining else "stopped"}, 503)
        return _json({"status": "ok"})

    async def metrics(_: Request) -> Response:
        return Response(service.metrics.text(), media_type=CONTENT_TYPE_LATEST)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        service.close()

    completions = TextEndpoint("completions", service, completion_job)
    chat = TextEndpoint("chat", service, chat_job)
    api = [
        Route("/models", models),
        Route("/models/{name:path}", model),
        Route("/completions", completions, methods=["POST"]),
        Route("/chat/completions", chat, methods=["POST"]),
    ]
    return Starlette(
        routes=[
            Mount("/v1", routes=api, middleware=[Middleware(_Authorised, service.options.api_key)]),
            Route("/health", health),
            Route("/metrics", metrics),
        ],
        exception_handlers=_handlers(),
        lifespan=lifespan,
    )


class _Authorised:
    """Lets requests through that carry the key, if there is one."""

    def __init__(self, app: ASGIApp, key: str | None) -> None:
        self._app, self._key = app, key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._key is not None:
            given = Request(scope).headers.get("authorization", "")
            if not hmac.compare_digest(given.encode("latin-1"), f"Bearer {self._key}".encode()):
                raise ApiError(
                    401,
                    "this server needs a key: Authorization: Bearer KEY",
                    code="invalid_api_key",
                    headers={"www-authenticate": "Bearer"},
                )
        await self._app(scope, receive, send)


def _handlers() -> dict[Any, Callable[[Request, Any], Response]]:
    def known(_: Request, error: ApiError) -> Response:
        return error_response(error)

    def http(request: Request, error: HTTPException) -> Response:
        texts = {
            404: f"there is nothing at {request.url.path}; this server has {PATHS}",
            405: f"{request.url.path} does not take {request.method}",
        }
        message = texts.get(error.status_code, error.detail)
        code = {404: "unknown_url", 405: "method_not_allowed"}.get(error.status_code)
        return error_response(ApiError(error.status_code, message, code=code, headers=error.headers))

    def unknown(_: Request, error: Exception) -> Response:
        return error_response(ApiError(500, f"{type(error).__name__} in the server", code="internal_error"))

    return {ApiError: known, HTTPException: http, Exception: unknown}


def _model(service: TextService, created: int) -> dict[str, Any]:
    description = service.lm.description
    return {
        "id": service.options.name,
        "object": "model",
        "created": created,
        "owned_by": "mansard",
        "family": description.family,
        "context": description.context,
        "caches": description.sequences,
    }


def _json(value: Any, status: int = 200) -> Response:
    return Response(to_json(value), status, media_type="application/json")
