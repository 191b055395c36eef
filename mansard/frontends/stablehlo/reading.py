"""Reading of StableHLO modules."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mansard.errors import ImportModelError
from mansard.frontends.mlir_worker.passes import PipelineError, new_context, parse
from mansard.frontends.mlir_worker.pool import lower
from mansard.frontends.mlir_worker.process import WorkerDiedError


def read_module(source: str | bytes | Path) -> Any:
    """A module from its text, its bytecode, a portable artifact, or a file of one of them.

    Parsed in a worker process first, so that a crash of MLIR's on it is an error. Raises ImportModelError.
    """
    if isinstance(source, Path):
        try:
            data = source.read_bytes()
        except OSError as error:
            raise ImportModelError(f"cannot read {source}: {error.strerror or error}") from error
        what = str(source)
    else:
        data = source.encode(errors="replace") if isinstance(source, str) else bytes(source)
        what = "the module"
    try:
        checked = lower(data, [])
        return parse(checked, new_context())
    except PipelineError as error:
        first = error.diagnostics[0]
        where = f" ({first.location})" if first.location else ""
        raise ImportModelError(f"{what} is not a StableHLO module: {first.message}{where}") from error
    except WorkerDiedError as error:
        raise ImportModelError(f"{what} cannot be read: MLIR's parser {error}") from error


def parsed(artifact: bytes) -> Any:
    """A module that a framework in this process wrote."""
    try:
        return parse(artifact, new_context())
    except PipelineError as error:
        raise ImportModelError(
            f"the exported module cannot be read: {error.diagnostics[0].message}"
        ) from error
