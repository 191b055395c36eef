"""``mansard compile``: a model file into an artifact."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from mansard.cli.decisions import decided, totals
from mansard.cli.explain import totals_table
from mansard.cli.limits import LimitsOption
from mansard.cli.models import signature
from mansard.cli.output import JsonOption, Output, si
from mansard.cli.progress import progress_bar
from mansard.cli.sources import read_source
from mansard.cli.specs import parse_dynamic, parse_memory, parse_pins, parse_tensor, with_vulkan_abi
from mansard.cli.tune import parse_duration


def compile_(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="An exported PyTorch program (.pt2), MLIR (.mlir), or FILE.py:FUNCTION, which returns "
            "(module, example inputs) or (module, example inputs, dynamic shapes).",
        ),
    ],
    output: Annotated[Path, typer.Option("-o", "--output", metavar="ARTIFACT", help="The file to write.")],
    device: Annotated[
        list[str] | None,
        typer.Option(
            "--device", metavar="DEVICE", help="Compile for a device present: cpu, vulkan, vulkan:1. Repeat."
        ),
    ] = None,
    target: Annotated[
        list[str] | None,
        typer.Option(
            "--target",
            metavar="TARGET",
            help="Compile for a target, present or not: cpu:x86-64-v3, vulkan:h200; cpu:x86-64-v4,x86-64-v3 "
            "or vulkan:hopper,valhall4 holds kernels for both. Repeat.",
        ),
    ] = None,
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
    ] = "cpu",
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
        typer.Option(metavar="FOLDER", help="Write the IR before and after every step that changes it."),
    ] = None,
    limits: LimitsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compile a model into one artifact file."""
    import mansard
    from mansard.api.compilation import default_devices

    given = [parse_tensor(text) for text in input_ or ()]
    shapes = parse_dynamic(dynamic or ())
    with Output(as_json) as out:
        source = read_source(model, given, shapes)
        named = device or (() if target else default_devices())
        begin = time.monotonic()
        with progress_bar() as progress:
            compiled = mansard.compile(
                **source,
                devices=with_vulkan_abi(named, vulkan_dispatch_abi) or None,
                target=with_vulkan_abi(target or (), vulkan_dispatch_abi) or None,
                placement=mansard.PlacementOptions(
                    objective,
                    parse_pins(pin or ()),
                    min_share,
                    fallback,
                    memory=parse_memory(memory or ()),
                    split=split,
                    colocate=tuple(colocate or ()),
                ),
                precision=precision,
                cache=not no_cache,
                tune=None if tune is None else parse_duration(tune),
                progress=progress,
                dump=_dumper(dump) if dump else None,
            )
            compiled.save(output, progress=lambda done, total: progress("write", done, total))
        seconds = time.monotonic() - begin
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


def _dumper(folder: Path) -> Callable[[str, str], None]:
    """Writes each step's text to a numbered file of the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    numbers = itertools.count()

    def write(step: str, text: str) -> None:
        (folder / f"{next(numbers):03}-{step}.txt").write_text(text + "\n", encoding="utf-8")

    return write
