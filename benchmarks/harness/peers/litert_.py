"""LiteRT's interpreter, which gives what it can to XNNPACK."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness.cases import Case
from benchmarks.harness.peers.base import Call, Peer


class LiteRt(Peer):
    name = "litert"
    packages = ("litert-torch", "ai-edge-litert")
    own_environment = True

    def imports(self) -> None:
        from ai_edge_litert.interpreter import Interpreter  # noqa: F401

    def refusal(self, case: Case) -> str | None:
        return "the interpreter takes no bfloat16 inputs" if case.dtype == "bfloat16" else None

    def build(self, case: Case, module: Any, args: tuple[Any, ...], place: Path) -> None:
        import litert_torch

        litert_torch.convert(module, args).export(str(place / "model.tflite"))

    def files(self, case: Case, place: Path, work: Path) -> list[Path]:
        return [place / "model.tflite"]

    def load(self, case: Case, place: Path, work: Path, arrays: list[np.ndarray], threads: int) -> Call:
        from ai_edge_litert.interpreter import Interpreter

        interpreter = Interpreter(str(place / "model.tflite"), num_threads=threads)
        interpreter.allocate_tensors()
        # Its tensors come in any order, named after their place in the signature.
        details = sorted(interpreter.get_input_details(), key=lambda detail: detail["name"])
        for detail, array in zip(details, arrays, strict=True):
            interpreter.set_tensor(detail["index"], array.astype(detail["dtype"]))
        outputs = interpreter.get_output_details()
        output = min(outputs, key=lambda detail: detail["name"])["index"]

        def call() -> np.ndarray:
            interpreter.invoke()
            return interpreter.get_tensor(output)

        return call
