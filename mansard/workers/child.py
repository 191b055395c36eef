"""The child process: imports a module and calls its functions until its parent closes the connection or ends.

Started by `BOOTSTRAP`; it needs nothing but the standard library, and NumPy where calls pass arrays.
"""

from __future__ import annotations

import importlib
import os
import socket
import traceback
from typing import Any

from mansard.workers import child_limits, messages
from mansard.workers.arena import Arena
from mansard.workers.requirements import missing

BOOTSTRAP = """
import json, sys, types
for name, folders in json.loads(sys.argv[1]).items():
    package = types.ModuleType(name)
    package.__path__ = folders
    sys.modules[name] = package
from mansard.workers.child import main
main(*map(int, sys.argv[2:5]))
"""
"""The child's program. Its arguments: packages of another environment, as JSON, to be known without running
their ``__init__``; the descriptors of the arena and of the connection; the parent's process id."""

_PRINTED_BYTES = 1 << 20
_TRACEBACK_CHARACTERS = 4000


class Server:
    """The functions of a module, and the objects that are kept between calls."""

    def __init__(self, arena: Arena) -> None:
        self.arena = arena
        self.module: Any = None
        self.kept: dict[int, Any] = {}

    def answer(self, header: dict[str, Any]) -> dict[str, Any]:
        """The reply to a request."""
        try:
            for number in header.get("dropped", ()):
                self.kept.pop(number, None)
            if "module" in header:
                return self._start(header["module"], header["requires"])
            return self._call(header)
        except BaseException as error:  # a library may exit, too
            shown = "".join(traceback.format_exception(error))[-_TRACEBACK_CHARACTERS:]
            return {"error": type(error).__name__, "message": str(error), "traceback": shown}

    def _start(self, module: str, requires: list[str]) -> dict[str, Any]:
        problems = missing(requires)
        if problems:
            return {"missing": problems}
        try:
            self.module = importlib.import_module(module)
        except ImportError as error:
            return {"missing": [str(error)]}
        return {}

    def _call(self, header: dict[str, Any]) -> dict[str, Any]:
        arguments = self.arena.decode(header["arguments"], copy=False)
        if "object" in header:
            arguments = [self.kept[header["object"]], *arguments]
        result = getattr(self.module, header["function"])(*arguments)
        if "keep" in header:
            self.kept[header["keep"]] = result
            return {"result": None}
        return {"result": self.arena.encode(result)}


def main(arena: int, connection: int, parent: int) -> None:
    """Serve requests while process ``parent`` lives. The module comes with the first one."""
    channel = socket.socket(fileno=connection)
    child_limits.give_way()
    ended = child_limits.parent_ended(parent)
    server = Server(Arena(arena))
    while child_limits.wait(channel, ended):
        try:
            header, _ = messages.receive(channel)
        except messages.ClosedError:
            break
        if os.fstat(2).st_size > _PRINTED_BYTES:
            os.ftruncate(2, 0)
        server.arena.resume(header["end"])
        child_limits.limit_time(0, header["seconds"])
        reply = server.answer(header)
        child_limits.limit_time(0, 0)
        messages.send(channel, reply)
