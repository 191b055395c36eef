"""Loading a model and preparing its inputs, for `run`, `bench` and `trace`."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from mansard import dims
from mansard.cli.specs import Array, InputType, OutputArgument, TensorArgument, parse_tensor, random_array

if TYPE_CHECKING:
    from mansard.api import Model
    from mansard.plan.plan import Plan, TensorSpec

ArtifactArgument = Annotated[
    Path, typer.Argument(metavar="ARTIFACT", help="A file written by `mansard compile`.")
]
InputOption = Annotated[
    list[str] | None,
    typer.Option(
        "--input",
        metavar="[NAME=]TENSOR",
        help="An input: SHAPExDTYPE[=VALUE] (a number, a comma list or `random`) or @FILE.npy. Repeat in "
        "call order, or name them.",
    ),
]
DeviceOption = Annotated[
    list[str] | None,
    typer.Option(
        "--device", metavar="DEVICE", help="A device to use, such as cpu, vulkan or vulkan:1. Repeat."
    ),
]
TargetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--target",
        metavar="TARGET",
        help="Compile for a target, present or not: cpu:x86-64-v3, vulkan:h200; cpu:x86-64-v4,x86-64-v3 "
        "or vulkan:hopper,valhall4 holds kernels for both. Repeat.",
    ),
]
RequestsOption = Annotated[
    int, typer.Option("--requests", min=1, metavar="N", help="Profile this many requests with equal inputs.")
]
InFlightOption = Annotated[
    int | None,
    typer.Option("--in-flight", min=1, metavar="K", help="At most this many requests at a time. Default: 4."),
]
VerifyOption = Annotated[
    bool,
    typer.Option("--verify", help="Also check the weights against their hashes, not only plan and code."),
]

TrustedKeysOption = Annotated[
    list[str] | None,
    typer.Option(
        "--trusted-key",
        metavar="KEY",
        help="Refuse the artifact unless this key signed it: a PEM file, or ed25519:… as text. Everything in "
        "the file is then checked, weights included. Repeat: any of the keys will do.",
    ),
]


def open_model(
    path: Path,
    devices: Sequence[str] | None,
    in_flight: int | None = None,
    *,
    verify: bool = False,
    trusted_keys: Sequence[str] | None = None,
) -> Model:
    """Load an artifact on the devices named, or on those it was compiled for.

    ``in_flight`` is the number of calls that may be in flight at a time; None for the default.
    """
    import mansard

    options: dict[str, Any] = {} if in_flight is None else {"max_in_flight": in_flight}
    if trusted_keys:
        options["trusted_keys"] = list(trusted_keys)
    elif verify:
        options["verify"] = True
    return mansard.load(path, devices=list(devices) if devices else None, **options)


_Named = TypeVar("_Named", TensorArgument, OutputArgument)


def gather_inputs(plan: Plan, texts: Sequence[str] | None, *, fill: bool) -> list[Array]:
    """The arrays of a call, in order.

    ``fill`` generates the inputs that are not given: random floats, zeros for other types, of the smallest
    shape the model accepts. Raises typer.BadParameter for a missing, duplicate or unknown input.
    """
    arguments = [parse_tensor(text) for text in texts or ()]
    given = by_name("input", [spec.name for spec in plan.inputs], arguments)
    missing = [spec.name for spec in plan.inputs if spec.name not in given]
    if missing and not fill:
        raise typer.BadParameter(
            f"missing --input for {', '.join(missing)}; the model takes {signature(plan)}"
        )
    arrays = []
    for spec in plan.inputs:
        seed = zlib.crc32(spec.name.encode())
        arrays.append(given[spec.name].load(seed) if spec.name in given else make_up(spec, seed))
    return arrays


def by_name(kind: str, names: Sequence[str], arguments: Sequence[_Named]) -> dict[str, _Named]:
    """Arguments by the name of an input or output, as ``kind`` says; unnamed ones take the names no argument
    claims, in order. Raises typer.BadParameter for unknown names, one that is given twice, and too many."""
    claimed = {argument.name for argument in arguments if argument.name}
    if unknown := claimed - set(names):
        raise typer.BadParameter(f"no {kind} named {', '.join(sorted(unknown))}; {kind}s: {', '.join(names)}")
    free = iter([name for name in names if name not in claimed])
    given: dict[str, _Named] = {}
    for argument in arguments:
        name = argument.name or next(free, None)
        if name is None:
            raise typer.BadParameter(f"{len(arguments)} {kind}s given; the model has {len(names)}")
        if name in given:
            raise typer.BadParameter(f"{kind} {name!r} is given twice")
        given[name] = argument
    return given


def signature(plan: Plan) -> str:
    """The model's inputs in the syntax of ``--input``, dims with their ranges."""
    ranges = [
        f"{dim.name} = {dim.min}..{dim.max}" + (f"/{dim.multiple}" if dim.multiple > 1 else "")
        for dim in plan.dims
    ]
    shown = ", ".join(describe(spec) for spec in plan.inputs)
    return shown + (f" where {', '.join(ranges)}" if ranges else "")


def describe(spec: TensorSpec) -> str:
    """One input or output: ``x=1x3xseqxf32``."""
    return f"{spec.name}=" + "x".join([*map(str, spec.shape), spec.dtype.value])


def make_up(spec: TensorSpec, seed: int) -> Array:
    """An input of the smallest shape the contract allows."""
    smallest = {dim.name: -(-max(dim.min, 1) // dim.multiple) * dim.multiple for dim in _symbols(spec)}
    kind = InputType(tuple(dims.evaluate(size, smallest) for size in spec.shape), spec.dtype)
    # Zero is a valid index into every table.
    return random_array(kind, seed) if spec.dtype.is_float else TensorArgument("", kind, "").load()


def _symbols(spec: TensorSpec) -> list[dims.Dim]:
    return [symbol for size in spec.shape if isinstance(size, dims.Expr) for symbol in size.symbols()]
