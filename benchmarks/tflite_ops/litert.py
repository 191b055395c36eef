"""LiteRT's answers."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from ai_edge_litert.interpreter import Interpreter, OpResolverType

Array = np.ndarray[Any, Any]


def litert_as_usual(model: bytes, inputs: Sequence[Array]) -> list[Array]:
    """LiteRT's results as it computes them by default: by XNNPACK where that has a kernel."""
    return run_interpreter(Interpreter(model_content=model, num_threads=1), inputs)


def litert(model: bytes, inputs: Sequence[Array], *, reference: bool = True) -> list[Array]:
    """LiteRT's results, by its reference kernels; inputs of other shapes resize the model."""
    kernels = OpResolverType.BUILTIN_REF if reference else OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
    try:
        interpreter = Interpreter(model_content=model, experimental_op_resolver_type=kernels, num_threads=1)
    except ValueError as error:
        if not reference or "Didn't find op" not in str(error):
            raise
        return litert(model, inputs, reference=False)  # a few operators have no reference kernel
    return run_interpreter(interpreter, inputs)


def litert_apart(path: Path, inputs: Sequence[Array], *, reference: bool) -> list[Array] | None:
    """LiteRT's results by reference kernels or as usual, in a process of its own; None where that ends."""
    with tempfile.TemporaryDirectory() as folder:
        given, made = Path(folder, "inputs.npz"), Path(folder, "outputs.npz")
        np.savez(given, *inputs)
        command = [
            sys.executable,
            "-m",
            "benchmarks.tflite_ops.litert",
            path,
            given,
            made,
            str(int(reference)),
        ]
        subprocess.run(command, check=False, capture_output=True)
        if not made.exists():
            return None
        with np.load(made) as arrays:
            return [arrays[f"arr_{i}"] for i in range(len(arrays.files))]


def run_interpreter(interpreter: Interpreter, inputs: Sequence[Array]) -> list[Array]:
    """One call of an interpreter."""
    details = interpreter.get_input_details()
    resized = [(d, x) for d, x in zip(details, inputs, strict=True) if tuple(d["shape"]) != x.shape]
    for detail, x in resized:
        interpreter.resize_tensor_input(detail["index"], x.shape)
    interpreter.allocate_tensors()
    for detail, x in zip(details, inputs, strict=True):
        interpreter.set_tensor(detail["index"], x)
    interpreter.invoke()
    return [interpreter.get_tensor(d["index"]) for d in interpreter.get_output_details()]


if __name__ == "__main__":
    with np.load(sys.argv[2]) as arrays:
        taken = [arrays[f"arr_{i}"] for i in range(len(arrays.files))]
    content = Path(sys.argv[1]).read_bytes()
    answers = litert(content, taken) if int(sys.argv[4]) else litert_as_usual(content, taken)
    np.savez(sys.argv[3], *answers)
