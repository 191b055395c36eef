"""``mansard run``: one call of a compiled model."""

from __future__ import annotations

import time
from typing import Annotated, Any

import numpy as np
import typer

from mansard.cli.limits import LimitsOption
from mansard.cli.models import (
    ArtifactArgument,
    DeviceOption,
    InputOption,
    TrustedKeysOption,
    VerifyOption,
    by_name,
    gather_inputs,
    open_model,
)
from mansard.cli.output import JsonOption, Output, milliseconds
from mansard.cli.specs import Array, OutputArgument, parse_output
from mansard.dtypes import from_numpy
from mansard.plan.plan import TensorSpec

SHOWN_VALUES = 64
"""Outputs up to this many elements are printed in full."""


def run(
    artifact: ArtifactArgument,
    input_: InputOption = None,
    output: Annotated[
        list[str] | None,
        typer.Option(
            "--output",
            metavar="[NAME=]@FILE",
            help="Where to write an output, in order or by name: .npy, or raw bytes for other suffixes.",
        ),
    ] = None,
    device: DeviceOption = None,
    memory: Annotated[
        bool, typer.Option("--memory", help="Also show the memory that the model holds, by use and device.")
    ] = False,
    verify: VerifyOption = False,
    trusted_key: TrustedKeysOption = None,
    limits: LimitsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run a compiled model once."""
    targets = [parse_output(text) for text in output or ()]
    with Output(as_json) as out:
        model = open_model(artifact, device, verify=verify, trusted_keys=trusted_key)
        inputs = gather_inputs(model.plan, input_, fill=False)
        files = by_name("output", [spec.name for spec in model.plan.outputs], targets)
        begin = time.perf_counter_ns()
        arrays = as_list(model(*inputs))
        elapsed = (time.perf_counter_ns() - begin) / 1e6
        reports = [
            _deliver(spec, array, files.get(spec.name))
            for spec, array in zip(model.plan.outputs, arrays, strict=True)
        ]
        for report, array in zip(reports, arrays, strict=True):
            out.show(_text(report, array))
        out.show(f"first call: {milliseconds(elapsed)}")
        result: dict[str, Any] = {"outputs": reports, "first_call_ms": elapsed}
        if memory:
            ledger = model.memory()
            out.show(f"\n{ledger}")
            result["memory"] = ledger.to_json()
        out.result(result)


def as_list(result: Any) -> list[Array]:
    """The outputs of a call as arrays in order."""
    values = result if isinstance(result, (tuple, list)) else [result]
    return [np.asarray(value) for value in values]


def _deliver(spec: TensorSpec, array: Array, file: OutputArgument | None) -> dict[str, Any]:
    """Save an output to its file, if any, and describe it."""
    report: dict[str, Any] = {
        "name": spec.name,
        "shape": list(array.shape),
        "dtype": from_numpy(array.dtype).value,
    }
    if file is not None:
        file.save(array)
        report["file"] = str(file.path)
    if array.size:
        numbers = array.astype(np.float64)
        report |= {"min": float(numbers.min()), "max": float(numbers.max()), "mean": float(numbers.mean())}
    if array.size <= SHOWN_VALUES:
        report["values"] = array.tolist()
    return report


def _text(report: dict[str, Any], array: Array) -> str:
    shape = "x".join([*map(str, report["shape"]), report["dtype"]])
    line = f"{report['name']}: {shape}"
    if "min" in report:
        line += f", min {report['min']:.6g}, max {report['max']:.6g}, mean {report['mean']:.6g}"
    if "file" in report:
        return f"{line}, written to {report['file']}"
    return line + "\n" + np.array2string(array, precision=5, threshold=SHOWN_VALUES)
