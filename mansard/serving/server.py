"""The server's process: it listens, and ends in order when it is told to."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from types import FrameType

import uvicorn

from mansard.errors import InputError
from mansard.language.language_model import LanguageModel
from mansard.serving.application import create_app
from mansard.serving.options import ServerOptions
from mansard.serving.service import TextService

_BACKLOG = 2048
"""Connections that the system accepts before the server does."""
_KEEP_ALIVE = 75
"""Seconds for which an idle connection is kept: longer than clients do, so that none is closed just when its
client sends a request."""
_AFTER_DRAINING = 5
"""Seconds in which clients whose texts were ended get their errors."""


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens at an address, for `Server.run`. Raises InputError where that is not possible."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        raise InputError(f"cannot listen at {host} port {port}: {error.strerror or error}") from error


class Server(uvicorn.Server):
    """Serves a language model until SIGTERM or SIGINT. Texts that are being generated then have
    `ServerOptions.drain_seconds` to become complete; the rest ends with an error. A second signal ends all
    at once."""

    def __init__(
        self,
        lm: LanguageModel,
        options: ServerOptions,
        *,
        host: str = "127.0.0.1",
        port: int = 8000,
        log_level: str = "info",
        ready: Callable[[str], None] | None = None,
    ) -> None:
        self.service = TextService(lm, options)
        self._ready = ready
        super().__init__(
            uvicorn.Config(
                create_app(self.service),
                host,
                port,
                log_level=log_level,
                lifespan="on",
                server_header=False,
                timeout_keep_alive=_KEEP_ALIVE,
                timeout_graceful_shutdown=round(options.drain_seconds) + _AFTER_DRAINING,
            )
        )

    @property
    def address(self) -> str:
        """The URL of the server, once it listens."""
        name = self.servers[0].sockets[0].getsockname()
        host = f"[{name[0]}]" if ":" in name[0] else name[0]
        return f"http://{host}:{name[1]}"

    async def startup(self, sockets: object = None) -> None:
        """Begin to listen."""
        await super().startup(sockets)  # type: ignore[arg-type]  # uvicorn's own type is narrower
        if self.started and self._ready is not None:
            self._ready(self.address)

    async def shutdown(self, sockets: object = None) -> None:
        """Let texts become complete, then end."""
        self.service.draining = True
        timer = asyncio.get_running_loop().call_later(
            self.service.options.drain_seconds, self.service.cancel_all
        )
        try:
            await super().shutdown(sockets)  # type: ignore[arg-type]
        finally:
            timer.cancel()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Ends in order are a success: unlike uvicorn's own, this does not raise the signal again."""
        del sig, frame
        if self.should_exit:
            self.force_exit = True
            self.service.cancel_all()
        self.should_exit = True
