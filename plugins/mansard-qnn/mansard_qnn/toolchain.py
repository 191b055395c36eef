"""Qualcomm's compiler, for a child process: a crash or a hang of its libraries ends no other."""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from typing import IO, Any

from mansard_qnn import vendor

_VERBOSE = 0
_REFUSED = re.compile(
    r"Validation FAILED for.*\n((?:\s*Operator type: .*Node name: .*\n)+)\s*REASON : (.*)", re.MULTILINE
)
_CONSEQUENCE = re.compile(r"\w+ node `[^`]*` will not be assigned to QNN EP\.?")
_NODE = re.compile(r"Node name: (\S*)")


def compile_model(model: bytes, settings: Mapping[str, str]) -> dict[str, Any]:
    """``context``: an ONNX model that holds the context compiled of ``model``; or, where Qualcomm's provider
    refuses it, ``error`` and ``refused``, the reasons by names of nodes, each in Qualcomm's words."""
    model = bytes(model)
    try:
        return {"context": _compile(model, settings, 4)}
    except Exception as error:  # ONNX Runtime has a class for each of its codes
        first = vendor.shown(error)
    with _logged() as log:
        with contextlib.suppress(Exception):
            return {"context": _compile(model, settings, _VERBOSE)}
        log.seek(0)
        text = log.read().decode(errors="replace")
    return {"error": first, "refused": reasons(text)}


def reasons(log: str) -> dict[str, str]:
    """Why nodes are refused, from the messages of a session."""
    result: dict[str, str] = {}
    for nodes, reason in _REFUSED.findall(log):
        words = _CONSEQUENCE.sub("", reason).strip(" .")
        result |= dict.fromkeys((name for name in _NODE.findall(nodes) if name), words)
    return result


def _compile(model: bytes, settings: Mapping[str, str], severity: int) -> bytes:
    onnxruntime, _, _ = vendor.packages()
    options = vendor.options({**vendor.NO_FALLBACK, **settings}, severity)
    compiler = onnxruntime.ModelCompiler(options, model, embed_compiled_data_into_model=True)
    return bytes(compiler.compile_to_bytes())


@contextlib.contextmanager
def _logged() -> Iterator[IO[bytes]]:
    """A file with what the process writes to standard error meanwhile, from C++ too."""
    with tempfile.TemporaryFile() as file:
        kept = os.dup(2)
        os.dup2(file.fileno(), 2)
        try:
            yield file
        finally:
            os.dup2(kept, 2)
            os.close(kept)
