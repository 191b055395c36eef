"""`mansard.compile`, `mansard.lower` and `mansard.tune`."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mansard.api.model import Model
from mansard.arguments import boolean, function, shown, text, texts
from mansard.artifact.resources import MemoryResources, read_artifact
from mansard.errors import CompileError, PlacementError
from mansard.hal import HOST_DEVICE
from mansard.hal import registry as _registry
from mansard.runtime.calls.limits import checked_seconds
from mansard.runtime.session import MAX_IN_FLIGHT, MAX_QUEUED, check_limits

if TYPE_CHECKING:
    from mansard.compiler import CompiledModel
    from mansard.ir.dispatch import DispatchGraph
    from mansard.ir.graph import Graph
    from mansard.passes.products.quantisation import Quantisation
    from mansard.placement import PlacementOptions

Progress = Callable[[str, int, int], None]
"""Called with (step, done, total)."""
Dump = Callable[[str, str], None]
"""Called with (step, the IR after it as text)."""


def compile(  # noqa: A001  # the name users expect, always used as mansard.compile
    model: Any,
    example_inputs: Any = None,
    *,
    kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
    dims: Mapping[str, Any] | None = None,
    constants: Mapping[str, Any] | None = None,
    input_names: Sequence[str] | None = None,
    frontend: str | None = None,
    frontend_options: Mapping[str, Any] | None = None,
    devices: str | Sequence[str] | None = None,
    target: str | Sequence[str] | None = None,
    placement: PlacementOptions | None = None,
    objective: str | None = None,
    fallback: str | None = None,
    precision: str = "f32",
    quantize: str | Quantisation | None = None,
    check_indices: bool = True,
    cache: bool = True,
    tune: float | None = None,
    max_in_flight: int = MAX_IN_FLIGHT,
    max_queued: int | None = MAX_QUEUED,
    progress: Progress | None = None,
    dump: Dump | None = None,
    start: str | None = None,
    skip: Sequence[str] = (),
) -> Model:
    """Compile a model and bind it to the devices of this machine.

    ``model`` is a torch module or exported program, or whatever else an installed frontend reads;
    ``example_inputs`` are what it is called with, of the shapes to compile for: one tensor, or a tuple or
    list of arguments, which may be nested and hold numbers and None; a dict, like ``kwargs``, holds arguments
    by name. The compiled model is then called as the model is, and returns what it returns.

    What frontends take (others refuse it): ``dynamic_shapes`` tells which axes vary,
    ``{input: {axis: mansard.Dim(...)}}`` (PyTorch); ``dims`` gives symbolic dims of a file a size or a
    contract, and ``constants`` inputs their values (ONNX, MLIR); ``input_names`` renames the inputs;
    ``frontend`` names the frontend where several read a model, ``frontend_options`` are those of one alone
    (docs/compiling.md).

    ``devices`` names devices present here
    (``cpu``, ``vulkan``, ``vulkan:1``), ``target`` targets that need not be (``cpu:x86-64-v3``,
    or ``cpu:x86-64-v4,x86-64-v3`` with kernels for both); either may end in changes of the target
    (``vulkan+abi=descriptors``, docs/gpus.md). Without either, the model is compiled for the CPU and every
    GPU present that is one in hardware.
    ``placement`` says how dispatches are placed; ``objective`` and ``fallback`` set the fields of it that
    are used most. ``precision="bf16"`` lets products with constant weights round their operands to bfloat16
    (sums stay f32; weights take half the memory); results then differ, by 2**-9 of each operand.
    ``quantize`` stores the weights of products as small integers with scales, ``"int8"`` or ``"int4"``, or
    those of bf16 without loss in 12 bits, ``"float12"``; or as what `mansard.quantize` returns says.
    ``check_indices=False`` leaves out the checks that indices of embeddings, gathers and scatters are in
    range, which otherwise fail a call with IndexOutOfRangeError (docs/compiling.md).
    ``progress(stage, done, total)`` is called as stages start, ``dump(pass, text)`` with the IR after
    each pass. ``start`` names the first pass to run, for a dumped graph, and ``skip`` passes to leave out.
    ``cache`` keeps compiled kernels on disk for later compilations (docs/compiling.md). ``tune`` spends
    that many seconds on a search of better kernels, as `mansard.tune` does. ``max_in_flight`` and
    ``max_queued`` bound the calls that run and that wait at a time, as for `load`.

    The model runs from memory; `Model.save` writes it to a file. When a target is not present, the
    model can be saved but not called. Raises errors under CompileError.
    """
    _check(precision, start, cache=cache, dump=dump, progress=progress)
    check_limits(max_in_flight, max_queued)
    seconds = None if tune is None else checked_seconds("tune", tune)
    given = _frontend_options(
        frontend_options,
        kwargs=kwargs,
        dynamic_shapes=dynamic_shapes,
        dims=dims,
        constants=constants,
        input_names=input_names,
        frontend=frontend,
    )
    with _missing_packages():
        from mansard import compiler
        from mansard.passes.products.quantisation import checked_quantisation

        options = compiler.CompileOptions(
            targets=target_names(devices, target),
            placement=_placement_options(placement, objective, fallback),
            precision=precision,
            quantisation=checked_quantisation(quantize),
            check_indices=check_indices,
            cache=cache,
            progress=progress,
            dump=dump,
            start=start,
            skip=texts("skip", skip, CompileError, "fuse"),
        )
        compiled = compiler.compile_model(model, example_inputs, options=options, **given)
    model = model_of(compiled, max_in_flight, max_queued)
    return model if seconds is None else _tune(model, seconds, cache=cache, progress=progress)


def lower(
    model: Any,
    example_inputs: Any = None,
    *,
    kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
    dims: Mapping[str, Any] | None = None,
    constants: Mapping[str, Any] | None = None,
    input_names: Sequence[str] | None = None,
    frontend: str | None = None,
    frontend_options: Mapping[str, Any] | None = None,
    stop_after: str | None = None,
    devices: str | Sequence[str] | None = None,
    target: str | Sequence[str] | None = None,
    precision: str = "f32",
    quantize: str | Quantisation | None = None,
    check_indices: bool = True,
    cache: bool = True,
    dump: Dump | None = None,
    start: str | None = None,
    skip: Sequence[str] = (),
) -> Graph | DispatchGraph:
    """The IR of a model after the pass ``stop_after``, or after all passes; ``str()`` gives its text.

    The other arguments are those of `compile`. From fusion on the IR is a DispatchGraph, before it a Graph,
    which `mansard.ir.graph_file.write_graph` saves for
    `compile` to go on with. Raises CompileError for a
    pass that the pipeline does not have, with those it has.
    """
    _check(precision, start, cache=cache, dump=dump)
    if stop_after is not None:
        text("stop_after", stop_after, CompileError)
    given = _frontend_options(
        frontend_options,
        kwargs=kwargs,
        dynamic_shapes=dynamic_shapes,
        dims=dims,
        constants=constants,
        input_names=input_names,
        frontend=frontend,
    )
    with _missing_packages():
        from mansard import compiler
        from mansard.passes.products.quantisation import checked_quantisation

        options = compiler.CompileOptions(
            targets=target_names(devices, target),
            precision=precision,
            quantisation=checked_quantisation(quantize),
            check_indices=check_indices,
            cache=cache,
            dump=dump,
            start=start,
            stop_after=stop_after,
            skip=texts("skip", skip, CompileError, "fuse"),
        )
        return compiler.lower_model(model, example_inputs, options=options, **given)


def _check(
    precision: str, start: str | None, *, cache: bool, dump: Dump | None, progress: Progress | None = None
) -> None:
    """Raise CompileError, naming the argument, for one of a type that it cannot have."""
    text("precision", precision, CompileError)
    if start is not None:
        text("start", start, CompileError)
    boolean("cache", cache, CompileError)
    function("dump", dump, CompileError)
    function("progress", progress, CompileError)


def _frontend_options(options: Mapping[str, Any] | None, **named: Any) -> dict[str, Any]:
    """The keywords of a frontend: those given of the ones with names, and its own. Raises CompileError."""
    if options is not None and not isinstance(options, Mapping):
        raise CompileError(f"frontend_options={shown(options)}: it takes a mapping by name")
    given = {name: value for name, value in named.items() if value is not None}
    if twice := sorted(given.keys() & (options or {}).keys()):
        raise CompileError(f"{twice[0]!r} is given twice, on its own and in frontend_options")
    return {**given, **(options or {})}


@contextlib.contextmanager
def _missing_packages() -> Iterator[None]:
    """Says of a package that compiling needs how to install it."""
    try:
        yield
    except ImportError as error:
        if (error.name or "").startswith("mansard"):
            raise
        raise CompileError(
            f"compiling needs a package that is not installed ({error.name}): pip install 'mansard[compile]'"
        ) from error


def tune(
    model: Model | str | os.PathLike[str],
    seconds: float = 60.0,
    *,
    cache: bool = True,
    progress: Progress | None = None,
) -> Model:
    """Search for faster kernels of a compiled model, or of one in a file, on this machine's devices.

    Schedule parameters (tile sizes, loop orders) are tried and timed for ``seconds``, starting with the
    kernels that take most of a call's time; results are the same up to rounding. The parameters selected
    are in `Model.tuning`, and with ``cache`` on disk: later compilations for this device use them, and a
    later search starts from them. The given model is not changed and shares its weights with the result.
    ``progress(kernel, done, total)`` counts seconds.

    Raises ArtifactError for a model without the sources of its kernels, CompileError for one that is
    not for this machine.
    """
    seconds = checked_seconds("seconds", seconds)
    boolean("cache", cache, CompileError)
    function("progress", progress, CompileError)
    given = model if isinstance(model, Model) else Model(*read_artifact(model))
    return _tune(given, seconds, cache=cache, progress=progress)


def _tune(model: Model, seconds: float, *, cache: bool, progress: Progress | None) -> Model:
    from mansard.tuning import tune as search

    tuning = search(model.plan, model._resources, seconds, cache=cache, progress=progress)
    limits = model._max_in_flight, model._max_queued
    tuned = Model(tuning.plan, tuning.resources, max_in_flight=limits[0], max_queued=limits[1])
    tuned.tuning, tuned.timings, tuned.kernels_cached = tuning, model.timings, model.kernels_cached
    return tuned


def model_of(
    compiled: CompiledModel, max_in_flight: int = MAX_IN_FLIGHT, max_queued: int | None = MAX_QUEUED
) -> Model:
    """What the compiler made as a model in memory."""
    resources = MemoryResources(compiled.executables, compiled.weights, compiled.sources)
    model = Model(compiled.plan, resources, max_in_flight=max_in_flight, max_queued=max_queued)
    model.timings, model.kernels_cached = compiled.timings, (compiled.cache.hits, compiled.cache.misses)
    return model


def target_names(
    devices: str | Sequence[str] | None, target: str | Sequence[str] | None = None
) -> tuple[str, ...]:
    """The targets to compile for, by default those of `default_devices`. Raises CompileError for anything but
    texts."""
    return (*_as_names("devices", devices), *_as_names("target", target)) or default_devices()


def _as_names(what: str, names: str | Sequence[str] | None) -> tuple[str, ...]:
    """Names of devices or targets as a tuple; raises CompileError for anything that is not a string."""
    if names is None:
        return ()
    return texts(what, names, CompileError, "cpu")


def default_devices() -> tuple[str, ...]:
    """The first hardware device of each driver; the CPU always."""
    by_driver = {HOST_DEVICE: HOST_DEVICE}
    for info in _registry.devices():
        if info.supported and not info.is_stand_in and info.kind != "software":
            by_driver.setdefault(info.driver, info.id)
    return tuple(by_driver.values())


def _placement_options(
    placement: PlacementOptions | None, objective: str | None, fallback: str | None
) -> PlacementOptions:
    """The placement options with those fields replaced that are given on their own."""
    from mansard.placement import PlacementOptions

    fields = {"objective": objective, "fallback": fallback}
    changes = {name: value for name, value in fields.items() if value is not None}
    if placement is not None and not isinstance(placement, PlacementOptions):
        raise PlacementError(
            f"placement={shown(placement)} is a {type(placement).__name__}, not a mansard.PlacementOptions"
        )
    return dataclasses.replace(placement or PlacementOptions(), **changes)  # type: ignore[arg-type]
