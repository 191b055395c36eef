"""The worker process: lowers one module per request until its parent closes the connection or ends.

Run as ``python -m mansard.frontends.mlir_worker.worker DESCRIPTOR PARENT``. What native code does wrong here
ends this process and no other: its CPU time and wall time are limited by timers of the kernel, which act
whoever holds the interpreter lock, its memory by a resource limit.
"""

from __future__ import annotations

import resource
import socket
import sys
from dataclasses import asdict
from typing import Any

from mansard.frontends.mlir_worker import passes
from mansard.workers import child_limits, messages

_PRINTED_BYTES = 1 << 20
IDLE_SECONDS = 300
"""A worker that has not been asked for anything for so long ends; the next request starts another."""


def main() -> None:
    """Serve requests on the inherited socket ``DESCRIPTOR`` while process ``PARENT`` lives."""
    connection = socket.socket(fileno=int(sys.argv[1]))
    child_limits.give_way(_PRINTED_BYTES)
    data_limit = resource.getrlimit(resource.RLIMIT_DATA)
    parent = child_limits.parent_ended(int(sys.argv[2]))
    passes.new_context()  # loads the bindings now
    while child_limits.wait(connection, parent, IDLE_SECONDS):
        try:
            header, module = messages.receive(connection)
        except messages.ClosedError:
            break
        child_limits.limit_time(header["cpu_seconds"], header["wall_seconds"])
        child_limits.limit_memory(header["memory_bytes"], data_limit)
        reply, lowered = _answer(header, module)
        child_limits.limit_time(0, 0)
        resource.setrlimit(resource.RLIMIT_DATA, data_limit)
        messages.send(connection, reply, lowered)


def _answer(header: dict[str, Any], module: bytes) -> tuple[dict[str, Any], bytes]:
    try:
        return {}, passes.lower(module, header["pipelines"])
    except passes.PipelineError as error:
        return {"diagnostics": [asdict(d) for d in error.diagnostics], "parsed": error.parsed}, b""
    except Exception as error:
        return {"failure": f"{type(error).__name__}: {error}"}, b""


if __name__ == "__main__":
    main()
