"""Networks in 8 bits: ONNX files with QuantizeLinear and DequantizeLinear, by ONNX Runtime's quantiser.

Activations are unsigned with a zero point, weights signed with a scale for each output channel; ranges are
those that the network's example input gives. Of MiniLM the products are quantised, of the others every
operator that the quantiser knows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import networks
from benchmarks.harness.cases import Case

PRODUCTS = ["MatMul", "Gemm", "Conv"]


def model_file(case: Case, work: Path) -> Path:
    """The file of a case in 8 bits; written where it is not there."""
    path = work / case.network / "int8.onnx"
    if not path.exists():
        _write(case, work, path)
    return path


def _write(case: Case, work: Path, path: Path) -> None:
    import torch

    plain = path.with_suffix(".f32.onnx")
    args = networks.tensors(case, case.inputs(work))
    module = networks.entry(case, work)
    torch.onnx.export(module, args, str(plain), dynamo=False, opset_version=17, input_names=["x"])
    kinds = PRODUCTS if case.network == "minilm" else None
    quantise_file(plain, path, [{"x": case.inputs(work)[0]}], op_types=kinds)


def quantise_file(
    plain: Path,
    path: Path,
    calls: Iterable[Mapping[str, Any]],
    *,
    op_types: Sequence[str] | None = None,
) -> None:
    """Write the quantised form of an ONNX file, with ranges from ``calls`` (arrays by input): the ops of
    ``op_types``, or all."""
    from onnxruntime.quantization import (
        CalibrationDataReader,
        QuantFormat,
        QuantType,
        quantize_static,
    )
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Examples(CalibrationDataReader):  # type: ignore[misc]
        """The calls, once."""

        def __init__(self) -> None:
            self.left = iter(calls)

        def get_next(self) -> Mapping[str, Any] | None:
            return next(self.left, None)

    prepared = path.with_suffix(".prepared.onnx")
    quant_pre_process(str(plain), str(prepared), skip_symbolic_shape=True)
    unfinished = path.with_suffix(".part")
    quantize_static(
        str(prepared),
        str(unfinished),
        Examples(),
        quant_format=QuantFormat.QDQ,
        per_channel=True,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
        op_types_to_quantize=op_types,
    )
    unfinished.rename(path)
