"""``mansard compile``: a model file into an artifact."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mansard.cli.bug_report import BugReport
from mansard.cli.compilation.lower import lower
from mansard.cli.compilation.quantisation import GroupSizeOption, QuantizeActivationsOption, QuantizeOptions
from mansard.cli.decisions import decided, totals
from mansard.cli.explain import totals_table
from mansard.cli.limits import LimitsOption
from mansard.cli.models import TargetOption, signature
from mansard.cli.output import JsonOption, Output, si
from mansard.cli.progress import progress_bar
from mansard.cli.sources import Keywords, read_source
from mansard.cli.specs import parse_dynamic, parse_memory, parse_pins, parse_tensor, with_vulkan_abi
from mansard.cli.tune import parse_duration
from mansard.hal.device import HOST_DEVICE

if TYPE_CHECKING:
    from mansard import Model, PlacementOptions


def compile_(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="An exported PyTorch program (.pt2), ONNX (.onnx), TFLite (.tflite), a TensorFlow "
            "SavedModel, an exported JAX function (.jax), MLIR (.mlir, .mlirbc), a dumped graph (.mir), or "
            "FILE.py:FUNCTION, which returns (module, example inputs) or (module, example inputs, dynamic "
            "shapes). For language models see compile-llm.",
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="ARTIFACT",
            help="The file to write: the artifact, or the IR where compilation stops before it.",
        ),
    ] = None,
    device: Annotated[
        list[str] | None,
        typer.Option(
            "--device", metavar="DEVICE", help="Compile for a device present: cpu, vulkan, vulkan:1. Repeat."
        ),
    ] = None,
    target: TargetOption = None,
    input_: Annotated[
        list[str] | None,
        typer.Option("--input", metavar="[NAME=]TENSOR", help="An example input, in order: 1x3x224x224xf32."),
    ] = None,
    dynamic: Annotated[
        list[str] | None,
        typer.Option(
            "--dynamic",
            metavar="NAME:AXIS=[SYMBOL:]MIN..MAX[/MULTIPLE]",
            help="Let an axis of an input vary: ids:1=seq:1..512. Repeat.",
        ),
    ] = None,
    fallback: Annotated[
        str, typer.Option(help="Where ops go that no device named can run: cpu, or error to refuse them.")
    ] = HOST_DEVICE,
    objective: Annotated[
        str, typer.Option(help="What placement optimises: latency or throughput.")
    ] = "latency",
    pin: Annotated[
        list[str] | None,
        typer.Option(
            "--pin",
            metavar="PATTERN=DEVICE",
            help="Run dispatches whose name, ops or source place match on a device: 'contraction*=vulkan'. "
            "Repeat; the first match wins.",
        ),
    ] = None,
    colocate: Annotated[
        list[str] | None,
        typer.Option(
            "--colocate",
            "--together",
            metavar="PATTERN",
            help="Run all dispatches that match on one device. Repeat. (--together is the former name.)",
        ),
    ] = None,
    memory: Annotated[
        list[str] | None,
        typer.Option(
            "--memory",
            metavar="DEVICE=BYTES",
            help="The most memory that the model takes on a device: vulkan=2GB. Repeat.",
        ),
    ] = None,
    min_share: Annotated[
        float, typer.Option(help="The least fraction of the dispatches for every device: 0 to 0.5.")
    ] = 0.0,
    split: Annotated[
        str,
        typer.Option(
            help="Divide heavy dispatches over the devices: off, auto (if a call is predicted to be faster), "
            "or all that two devices can share."
        ),
    ] = "off",
    precision: Annotated[
        str,
        typer.Option(help="f32, or bf16: products with weights round their operands to bfloat16."),
    ] = "f32",
    quantize: Annotated[
        str | None,
        typer.Option(
            metavar="KIND",
            help="Store the weights of products as int8, int4 or float12 (docs/compiling.md). With "
            "--calibration, the scheme: int8, int8-products, int16 or mixed (docs/quantise.md).",
        ),
    ] = None,
    group_size: GroupSizeOption = None,
    zero_points: Annotated[
        bool, typer.Option("--zero-points", help="With --quantize, integers that are not symmetric around 0.")
    ] = False,
    quantize_activations: QuantizeActivationsOption = False,
    keep_weights: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATTERN", help="With --quantize, leave weights with such names: '*lm_head*'. Repeat."
        ),
    ] = None,
    calibration: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.npz",
            help="With --quantize, samples by input name along the first axis: values become integers, too.",
        ),
    ] = None,
    ranges: Annotated[
        str | None,
        typer.Option(metavar="METHOD", help="With --calibration: minmax, percentile or mse (the default)."),
    ] = None,
    budget: Annotated[
        float | None,
        typer.Option(help="With --quantize mixed, the part of the multiply-adds that may be wider: 0.1."),
    ] = None,
    smoothing: Annotated[
        float | None,
        typer.Option(
            help="With --calibration: 0 to 1, how far scales of channels around norms move into constants."
        ),
    ] = None,
    no_check_indices: Annotated[
        bool,
        typer.Option(
            "--no-check-indices",
            help="Leave out the checks that indices are in range; those that are not are clamped.",
        ),
    ] = False,
    vulkan_dispatch_abi: Annotated[
        str,
        typer.Option(
            help="How Vulkan kernels receive buffers: bda (addresses), descriptors, or all for both."
        ),
    ] = "bda",
    no_cache: Annotated[
        bool, typer.Option("--no-cache", help="Neither use nor keep compiled kernels on disk.")
    ] = False,
    tune: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Search for better kernels that long (60s, 5m): see mansard tune."),
    ] = None,
    dump: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Write the IR before and after every pass that changes it."),
    ] = None,
    stop_after: Annotated[
        str | None,
        typer.Option(metavar="PASS", help="Stop after a pass and write the IR, to -o or standard output."),
    ] = None,
    skip_pass: Annotated[
        list[str] | None, typer.Option("--skip-pass", metavar="PASS", help="Leave a pass out. Repeat.")
    ] = None,
    start: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="PASS", help="Begin with a pass, for a graph (.mir) dumped before it."
        ),
    ] = None,
    weights: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The weights of a graph (.mir): safetensors, by names or keys of constants. By default "
            "those beside it.",
        ),
    ] = None,
    with_weights: Annotated[
        bool,
        typer.Option("--with-weights", help="With --stop-after, write the weights beside the graph as well."),
    ] = False,
    report: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write a zip archive for a bug report, also when compiling fails: the IR of each pass, "
            "versions, devices and the error. No weights are in it.",
        ),
    ] = None,
    limits: LimitsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compile a model into one artifact file."""
    from mansard.api.compilation import default_devices

    given = [parse_tensor(text) for text in input_ or ()]
    shapes = parse_dynamic(dynamic or ())
    with Output(as_json) as out:
        source = read_source(model, given, shapes)
        if weights is not None:
            if Path(model).suffix != ".mir":
                raise typer.BadParameter("--weights is for a graph (.mir); other models bring their own")
            source["frontend_options"] = {"weights": weights}
        named = device or (() if target else default_devices())
        keywords = {
            **source,
            "devices": with_vulkan_abi(named, vulkan_dispatch_abi) or None,
            "target": with_vulkan_abi(target or (), vulkan_dispatch_abi) or None,
            "precision": precision,
            "check_indices": not no_check_indices,
            "cache": not no_cache,
            "start": start,
            "skip": tuple(skip_pass or ()),
            "dump": _folder_dump(dump),
        }
        QuantizeOptions(
            quantize,
            group_size,
            keep_weights or (),
            zero_points,
            quantize_activations,
            calibration,
            ranges,
            budget,
            smoothing,
        ).apply(out, keywords)
        if stop_after is not None:
            with _reported(report, keywords):
                lower(out, keywords, stop_after, output, with_weights=with_weights)
            return
        if output is None:
            raise typer.BadParameter("-o ARTIFACT is needed: the file to write")
        if with_weights:
            raise typer.BadParameter("--with-weights is for --stop-after; an artifact holds its weights")
        placement = _placement(objective, pin, min_share, fallback, memory, split, colocate)
        with _reported(report, keywords) as reported:
            _compile(out, keywords, placement, tune, output, reported)


def _placement(
    objective: str,
    pin: Sequence[str] | None,
    min_share: float,
    fallback: str,
    memory: Sequence[str] | None,
    split: str,
    colocate: Sequence[str] | None,
) -> PlacementOptions:
    import mansard

    return mansard.PlacementOptions(
        objective,
        parse_pins(pin or ()),
        min_share,
        fallback,
        memory=parse_memory(memory or ()),
        split=split,
        colocate=tuple(colocate or ()),
    )


def _compile(
    out: Output,
    keywords: Keywords,
    placement: PlacementOptions,
    tune: str | None,
    output: Path,
    reported: BugReport | None,
) -> None:
    import mansard

    begin = time.monotonic()
    with progress_bar() as progress:

        def show(stage: str, done: int, total: int) -> None:
            if reported is not None:
                reported.progress(stage)
            progress(stage, done, total)

        compiled = mansard.compile(
            **keywords,
            placement=placement,
            tune=None if tune is None else parse_duration(tune),
            progress=show,
        )
        compiled.save(output, progress=lambda done, total: progress("write", done, total))
    _report(out, compiled, output, time.monotonic() - begin)


def _report(out: Output, compiled: Model, output: Path, seconds: float) -> None:
    size = output.stat().st_size
    plan = compiled.plan
    out.show(totals_table(decided(plan)))
    out.show(f"inputs: {signature(plan)}")
    cached, compiled_count = compiled.kernels_cached
    steps = ", ".join(f"{name} {time_s:.1f}" for name, time_s in compiled.timings.items())
    out.show(f"{cached + compiled_count} distinct kernels, {cached} from the cache; seconds: {steps}")
    out.show(f"{output}: {si(size, 'B')}, compiled in {seconds:.1f} s")
    out.result(
        {
            "artifact": str(output),
            "bytes": size,
            "compile_s": seconds,
            "timings": compiled.timings,
            "kernels": cached + compiled_count,
            "kernels_cached": cached,
            "inputs": signature(plan),
            "devices": totals(decided(plan)),
        }
    )


@contextlib.contextmanager
def _reported(path: Path | None, keywords: Keywords) -> Iterator[BugReport | None]:
    """A bug report of what happens inside, to the file ``path``; None without one. ``keywords`` is told to
    dump into it, too."""
    if path is None:
        yield None
        return
    if path.is_dir() or not path.parent.is_dir():
        raise typer.BadParameter(f"--report {path}: it takes the name of a file in a folder that is there")
    with BugReport(path, keywords) as report:
        keywords["dump"] = report.dumping(keywords["dump"])
        yield report


def _folder_dump(folder: Path | None) -> Callable[[str, str], None] | None:
    if folder is None:
        return None
    from mansard.compiler.dumps import DumpFolder

    return DumpFolder(folder).write
