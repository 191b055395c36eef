"""ONNX Runtime with its CPU provider."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness.cases import Case
from benchmarks.harness.peers.base import Call, Peer


class OnnxRuntime(Peer):
    name = "onnxruntime"
    packages = ("onnxruntime", "onnx", "onnxscript")
    reads_onnx = True

    def imports(self) -> None:
        import onnxruntime  # noqa: F401

    def refusal(self, case: Case) -> str | None:
        return "its CPU provider has no bfloat16 Mul" if case.dtype == "bfloat16" else None

    def build(self, case: Case, module: Any, args: tuple[Any, ...], place: Path) -> None:
        path = str(place / "model.onnx")
        if isinstance(module, Path):
            shutil.copyfile(module, path)
            return
        import torch

        torch.onnx.export(module, args, path, dynamo=True, external_data=True, verbose=False)

    def files(self, case: Case, place: Path, work: Path) -> list[Path]:
        return [place / "model.onnx", place / "model.onnx.data"]

    def load(self, case: Case, place: Path, work: Path, arrays: list[np.ndarray], threads: int) -> Call:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        session = onnxruntime.InferenceSession(
            str(place / "model.onnx"), options, providers=["CPUExecutionProvider"]
        )
        feeds = dict(zip((i.name for i in session.get_inputs()), arrays, strict=True))
        return lambda: session.run(None, feeds)[0]
