"""The endpoints that generate text: one request from its body to the end of its answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import aclosing
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from mansard.language.text_request import TextRequest
from mansard.serving.answers import Answers
from mansard.serving.api_errors import ApiError
from mansard.serving.json_body import read_object, to_json
from mansard.serving.options import ServerOptions
from mansard.serving.prompts import PromptReader
from mansard.serving.service import TextService
from mansard.serving.text_job import Body, Headers, TextJob

Parse = Callable[[Body, Headers, ServerOptions, PromptReader], Awaitable[TextJob]]
CLIENT_GONE = 499
"""The status that stands in metrics for a client that went away, as nginx has it."""


class TextEndpoint:
    """An ASGI application for one path. A client that goes away ends its texts."""

    def __init__(self, name: str, service: TextService, parse: Parse) -> None:
        self._name, self._service, self._parse = name, service, parse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request. Raises ApiError for an error before the answer has begun."""
        service, status = self._service, CLIENT_GONE
        try:
            job = await self._job(Request(scope, receive))
            requests = service.begin(job)
            answers = Answers(job, service.options.name, service.names)
            answer = self._stream if job.stream else self._whole
            try:
                if await _unless_gone(receive, answer(requests, answers, send)):
                    status = 200
            finally:
                service.end(requests)
        except ApiError as error:
            status = error.status
            service.metrics.count_error(error.code)
            raise
        except ClientDisconnect:
            return
        finally:
            service.metrics.count_request(self._name, status)

    async def _job(self, request: Request) -> TextJob:
        service = self._service
        body = await read_object(request, service.options.max_body)
        return await self._parse(body, request.headers, service.options, service.reader)

    async def _whole(self, requests: list[TextRequest], answers: Answers, send: Send) -> None:
        async with aclosing(self._service.steps(requests)) as steps:
            async for index, token in steps:
                answers.add(index, token, requests[index].finish_reason)
        body = to_json(answers.whole(requests))
        await _start(send, "application/json", ("content-length", str(len(body))))
        await send({"type": "http.response.body", "body": body})

    async def _stream(self, requests: list[TextRequest], answers: Answers, send: Send) -> None:
        """Server-sent events. The answer begins with the first token: an error before that has a status."""

        async def event(data: bytes, *, more: bool = True) -> None:
            await send({"type": "http.response.body", "body": b"data: " + data + b"\n\n", "more_body": more})

        begun = False
        try:
            async with aclosing(self._service.steps(requests)) as steps:
                async for index, token in steps:
                    if not begun:
                        await _start(send, "text/event-stream; charset=utf-8", ("cache-control", "no-cache"))
                        begun = True
                        for chunk in answers.first():
                            await event(to_json(chunk))
                    told = answers.add(index, token, requests[index].finish_reason)
                    if told is not None:
                        await event(to_json(told))
        except ApiError as error:
            if not begun:
                raise
            self._service.metrics.count_error(error.code)
            await event(to_json(error.body()), more=False)
            return
        for chunk in answers.last(requests):
            await event(to_json(chunk))
        await event(b"[DONE]", more=False)


async def _start(send: Send, kind: str, *headers: tuple[str, str]) -> None:
    encoded = [(name.encode(), value.encode()) for name, value in (("content-type", kind), *headers)]
    await send({"type": "http.response.start", "status": 200, "headers": encoded})


async def _unless_gone(receive: Receive, work: Coroutine[Any, Any, None]) -> bool:
    """Do the work, and stop when the client has closed its connection; whether it was done."""

    async def gone() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    working, leaving = asyncio.create_task(work), asyncio.create_task(gone())
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            working.result()
            return True
        return False
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


def error_response(error: ApiError) -> Response:
    """An error as an answer."""
    return Response(to_json(error.body()), error.status, error.headers, "application/json")
