"""RKNN-Toolkit2 in the Python environment that has it: the functions of a worker.

The toolkit reports failures by exit codes and printed lines. On a board `load` and `run` use the runtime,
``rknn-toolkit-lite2``; elsewhere the toolkit's simulator, which runs what it has compiled itself, and so
compiles the model that a region was made of again.
"""

from __future__ import annotations

import io
import os
import re
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

MODEL, COMPILED, CHIP = "region.onnx", "region.rknn", "chip.txt"
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_EXACT = 2
"""The level of optimisation at which quantised models keep their own scales."""


class FailedError(Exception):
    """The toolkit does not take a model."""


def compile_model(model: bytes, chip: str) -> dict[str, Any]:
    """The container of a model for a chip, or ``error``: what the toolkit prints of it."""
    try:
        toolkit, compiled = _built(bytes(model), chip)
        toolkit.release()
    except FailedError as error:
        return {"error": str(error)}
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in {MODEL: bytes(model), COMPILED: compiled, CHIP: chip.encode()}.items():
            archive.writestr(zipfile.ZipInfo(name), data)
    return {"code": buffer.getvalue()}


def load(code: bytes) -> Any:
    """A region on the board's NPU, or in the simulator."""
    with zipfile.ZipFile(io.BytesIO(bytes(code))) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    try:
        from rknnlite.api import RKNNLite
    except ImportError:
        loaded = _built(files[MODEL], files[CHIP].decode())[0]
        _checked("start the simulator", loaded.init_runtime)
        return loaded
    loaded = RKNNLite()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, COMPILED)
        path.write_bytes(files[COMPILED])
        _checked("load a region", lambda: loaded.load_rknn(str(path)))
    _checked("start the NPU", loaded.init_runtime)
    return loaded


def run(loaded: Any, inputs: list[Any], params: list[int]) -> list[Any]:
    """The outputs of a region. Regions have no parameters."""
    outputs = loaded.inference(inputs=[array.copy() for array in inputs], data_format=["nchw"] * len(inputs))
    if outputs is None:
        raise FailedError("the NPU gives no result")
    return list(outputs)


def _built(model: bytes, chip: str) -> tuple[Any, bytes]:
    from rknn.api import RKNN

    toolkit = RKNN(verbose=False)
    with tempfile.TemporaryDirectory() as folder:
        source, result = Path(folder, MODEL), Path(folder, COMPILED)
        source.write_bytes(model)
        _checked("configure", lambda: toolkit.config(target_platform=chip, optimization_level=_EXACT))
        _checked("load", lambda: toolkit.load_onnx(str(source)))
        _checked("build", lambda: toolkit.build(do_quantization=False))
        _checked("export", lambda: toolkit.export_rknn(str(result)))
        return toolkit, result.read_bytes()


def _checked(what: str, call: Callable[[], int]) -> None:
    """A call of the toolkit, whose failures are what it prints as errors."""
    start = os.fstat(1).st_size
    try:
        failed = call() not in (0, None)
    except Exception as error:  # the toolkit raises whatever it met
        raise FailedError(_printed(start) or f"{type(error).__name__}: {error}") from error
    if failed:
        raise FailedError(_printed(start) or f"it cannot {what} it, and does not say why")


def _printed(start: int) -> str:
    """The first error that was printed since, without colours, the toolkit's own frames and its version."""
    sys.stdout.flush()
    sys.stderr.flush()
    text = _COLOUR.sub("", os.pread(1, 1 << 20, start).decode(errors="replace"))
    errors = re.findall(r"(?ms)^E\s+(.*?)(?=^[EWID]\s|\Z)", text)
    for error in errors:
        lines = [line.strip() for line in error.splitlines() if line.strip()]
        kept = [line for line in lines if not line.startswith(("File ", "Traceback"))]
        if kept and not kept[0].startswith("rknn-toolkit2 version"):
            return " ".join(kept)[:400]
    return ""
