"""OpenVINO's CPU plug-in, held to the model's element type, and as installed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness.cases import Case
from benchmarks.harness.peers.base import Call, Peer, export, narrow, widen


class OpenVino(Peer):
    name = "openvino"
    packages = ("openvino",)
    pinned = True
    reads_onnx = True

    def imports(self) -> None:
        import openvino  # noqa: F401

    def build(self, case: Case, module: Any, args: tuple[Any, ...], place: Path) -> None:
        import openvino

        if isinstance(module, Path):
            openvino.save_model(openvino.convert_model(module), place / "model.xml", compress_to_fp16=False)
            return
        from transformers.integrations import sdpa_attention

        # The converter drops enable_gqa: let transformers repeat the heads itself.
        sdpa_attention.use_gqa_in_sdpa = lambda *_: False
        model = openvino.convert_model(export(module, args))
        # Inputs of an exported program come out dynamic, which costs the plug-in its static plans.
        model.reshape({port: list(arg.shape) for port, arg in zip(model.inputs, args, strict=True)})
        openvino.save_model(model, place / "model.xml", compress_to_fp16=False)

    def files(self, case: Case, place: Path, work: Path) -> list[Path]:
        return [place / "model.xml", place / "model.bin"]

    def load(self, case: Case, place: Path, work: Path, arrays: list[np.ndarray], threads: int) -> Call:
        import openvino

        options = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY"}
        if self.pinned:
            options["INFERENCE_PRECISION_HINT"] = {"bfloat16": "bf16"}.get(case.dtype, "f32")
        compiled = openvino.Core().compile_model(place / "model.xml", "CPU", options)
        request = compiled.create_infer_request()
        for number, array in enumerate(arrays):
            tensor = request.get_input_tensor(number)
            if tensor.element_type == openvino.Type.bf16:
                tensor.data.view(np.uint16)[:] = narrow(array)
            else:
                tensor.data[:] = array

        def call() -> np.ndarray:
            request.infer()
            tensor = request.get_output_tensor(0)
            bf16 = tensor.element_type == openvino.Type.bf16
            return widen(tensor.data.view(np.uint16)) if bf16 else tensor.data

        return call


class OpenVinoDefault(OpenVino):
    """As installed: on CPUs with bfloat16 instructions a float32 model may be computed in bfloat16."""

    name = "openvino-default"
    pinned = False
    shares_build_of = "openvino"

    def refusal(self, case: Case) -> str | None:
        return "the same as openvino" if case.dtype == "bfloat16" else None
