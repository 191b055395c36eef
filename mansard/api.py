"""What users call: `compile`, `load`, `devices`, and the `Model` that the first two give."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any

from mansard import dims
from mansard.artifact.resources import MemoryResources, Resources, Verify, read_artifact, write_artifact
from mansard.errors import CompileError, MansardError, PlacementError
from mansard.hal import DeviceInfo
from mansard.hal import registry as _registry
from mansard.plan.plan import Decision, Plan, Prediction, TensorSpec
from mansard.runtime.calls.call import Stats
from mansard.runtime.calls.limits import seconds as time_limit
from mansard.runtime.calls.profile import Profile
from mansard.runtime.execution.binding import Devices
from mansard.runtime.execution.shares import Share
from mansard.runtime.memory.ledger import MemoryLedger
from mansard.runtime.memory.tensors import Array, to_torch
from mansard.runtime.session import MAX_IN_FLIGHT, MAX_QUEUED, Session, check_limits, dispatch_counts

if TYPE_CHECKING:
    from mansard.placement import PlacementOptions
    from mansard.tuning import Tuning

Progress = Callable[[str, int, int], None]
"""Called with (step, done, total)."""
Dump = Callable[[str, str], None]
"""Called with (step, the IR after it as text)."""


def compile(  # noqa: A001  # the name users expect, always used as mansard.compile
    model: Any,
    example_inputs: Any = None,
    *,
    devices: str | Sequence[str] | None = None,
    target: str | Sequence[str] | None = None,
    dynamic_shapes: Any = None,
    placement: PlacementOptions | None = None,
    objective: str | None = None,
    fallback: str | None = None,
    precision: str = "f32",
    vulkan_dispatch_abi: str = "bda",
    cache: bool = True,
    tune: float | None = None,
    max_in_flight: int = MAX_IN_FLIGHT,
    max_queued: int | None = MAX_QUEUED,
    progress: Progress | None = None,
    dump: Dump | None = None,
    **frontend: Any,
) -> Model:
    """Compile a model and bind it to the devices of this machine.

    ``model`` is a torch module or exported program, or whatever else an installed frontend reads;
    ``example_inputs`` are tensors of the shapes to compile for. ``devices`` names devices present here
    (``cpu``, ``vulkan``, ``vulkan:1``), ``target`` targets that need not be (``cpu:x86-64-v3``,
    or ``cpu:x86-64-v4,x86-64-v3`` with kernels for both); without
    either, the model is compiled for the CPU and every GPU present that is one in hardware.
    ``dynamic_shapes`` tells which axes vary: ``{input: {axis: mansard.Dim(...)}}``.
    ``placement`` says how dispatches are spread, ``objective`` and ``fallback`` are its most wanted
    fields. ``precision="bf16"`` lets products with constant weights round their operands to bfloat16
    (sums stay f32; weights take half the memory); results then differ, by 2**-9 of each operand.
    ``vulkan_dispatch_abi`` says how kernels for Vulkan receive their buffers: by 64-bit addresses
    (``"bda"``), as ``"descriptors"`` for drivers that are better at those, or ``"all"``: devices then take
    the addresses if they can. Further keywords go to the frontend.
    ``progress(step, done, total)`` is called as steps start, ``dump(step, text)`` with the IR after each.
    ``cache`` keeps compiled kernels on disk for later compilations (docs/compiling.md). ``tune`` spends
    that many seconds on a search of better kernels, as `mansard.tune` does. ``max_in_flight`` and
    ``max_queued`` bound the calls that run and that wait at a time, as for `load`.

    The model runs from memory; `Model.save` writes it to a file. When a target is not present, the
    model can be saved but not called. Raises errors under CompileError.
    """
    if dynamic_shapes is not None:
        frontend["dynamic_shapes"] = dynamic_shapes
    try:
        from mansard import compiler

        options = compiler.CompileOptions(
            targets=(*_texts(devices), *_texts(target)) or _default_devices(),
            placement=_placement(placement, objective, fallback),
            precision=precision,
            vulkan_dispatch_abi=vulkan_dispatch_abi,
            cache=cache,
            progress=progress,
            dump=dump,
        )
        compiled = compiler.compile_model(model, example_inputs, options=options, **frontend)
    except ImportError as error:
        if (error.name or "").startswith("mansard"):
            raise
        raise CompileError(
            f"compiling needs a package that is not installed ({error.name}): pip install 'mansard[compile]'"
        ) from error
    resources = MemoryResources(compiled.executables, compiled.weights, compiled.sources)
    model = Model(compiled.plan, resources, max_in_flight=max_in_flight, max_queued=max_queued)
    model.timings, model.kernels_cached = compiled.timings, (compiled.cache.hits, compiled.cache.misses)
    return model if tune is None else _tune(model, tune, cache=cache, progress=progress)


def tune(
    model: Model | str | os.PathLike[str],
    seconds: float = 60.0,
    *,
    cache: bool = True,
    progress: Progress | None = None,
) -> Model:
    """A compiled model, or one in a file, with the fastest kernels found on this machine's devices.

    Schedule parameters (tile sizes, orders of loops) are tried and timed for ``seconds``, the kernels
    that take most of a call's time first; results are the same up to rounding. What was found is in
    `Model.tuning`, and with ``cache`` on disk: a later compilation for this device uses it, a later search
    goes on from it. The model given stays as it is and shares its weights with the result.
    ``progress(kernel, done, total)`` counts seconds.

    Raises ArtifactError for a model without the sources of its kernels, CompileError for one that is
    not for this machine.
    """
    given = model if isinstance(model, Model) else Model(*read_artifact(model))
    return _tune(given, seconds, cache=cache, progress=progress)


def _tune(model: Model, seconds: float, *, cache: bool, progress: Progress | None) -> Model:
    from mansard.tuning import tune as search

    seconds = time_limit("tune", seconds)
    found = search(model.plan, model._resources, seconds, cache=cache, progress=progress)
    limits = model._max_in_flight, model._max_queued
    tuned = Model(found.plan, found.resources, max_in_flight=limits[0], max_queued=limits[1])
    tuned.tuning, tuned.timings, tuned.kernels_cached = found, model.timings, model.kernels_cached
    return tuned


def load(
    path: str | os.PathLike[str],
    devices: Devices = None,
    *,
    verify: Verify = "code",
    max_in_flight: int = MAX_IN_FLIGHT,
    max_queued: int | None = MAX_QUEUED,
) -> Model:
    """Open a model that `Model.save` or ``mansard compile`` wrote, and bind it to devices.

    ``devices`` says which devices take the places of those the model was compiled for: names such as
    ``["vulkan:1"]``, each taking the place of its driver, or a mapping ``{"vulkan": "vulkan:1"}``; places
    not named get the first device that can run the code.
    Plan and code are always checked against their hashes. Weights are mapped from the file and read when
    a kernel does, so their hashes are checked on demand only: ``verify="full"`` (or True).
    ``max_in_flight`` bounds how many calls run at a time, ``max_queued`` (None: not) how many others wait
    for their turn; one more raises QueueFullError.

    Raises ArtifactError for a file that is truncated, altered, foreign or too new, before anything of
    it is used, and TargetMismatchError naming target and devices present when no device fits.
    """
    plan, resources = read_artifact(path, verify)
    model = Model(plan, resources, devices, max_in_flight=max_in_flight, max_queued=max_queued)
    model.bind()
    return model


def devices() -> list[DeviceInfo]:
    """Every device of every installed driver, those that cannot be used with the reasons."""
    return _registry.devices()


@dataclass(frozen=True)
class Explanation:
    """Why each dispatch runs where it runs. ``str()`` gives a table."""

    rows: tuple[Decision, ...]
    totals: Mapping[str, int]
    """Dispatches by device."""
    precision: str = "f32"
    """The ``precision`` the model was compiled with."""
    prediction: Prediction | None = None
    """What placement expects of a call; None for artifacts made before that was kept."""

    def __str__(self) -> str:
        cells = [("dispatch", "device", "reason", "predicted")]
        for row in self.rows:
            costs = ", ".join(f"{name} {_cost(cost)}" for name, cost in row.costs.items())
            cells.append((row.dispatch, row.device, row.reason, costs))
        widths = [max(len(row[column]) for row in cells) for column in range(3)]
        lines = [
            "  ".join([*(text.ljust(width) for text, width in zip(row, widths, strict=False)), row[3]])
            for row in cells
        ]
        counts = ", ".join(f"{name}: {count}" for name, count in self.totals.items())
        ends = [f"precision: {self.precision}", f"dispatches by device: {counts}"]
        if self.prediction is not None:
            ends.append(str(self.prediction))
        return "\n".join([*(line.rstrip() for line in lines), *ends])


class Model:
    """A compiled model. Call it with NumPy arrays, torch tensors or anything with ``__dlpack__``.

    Torch tensors in give torch tensors out, everything else NumPy arrays; one output comes bare,
    several as a tuple in the model's order. A model may be called from several threads at once.
    It is a context manager; `close` frees its memory.
    """

    def __init__(
        self,
        plan: Plan,
        resources: Resources,
        devices: Devices = None,
        *,
        max_in_flight: int = MAX_IN_FLIGHT,
        max_queued: int | None = MAX_QUEUED,
    ) -> None:
        check_limits(max_in_flight, max_queued)
        self.plan = plan
        self._resources = resources
        self._devices = devices
        self._max_in_flight, self._max_queued = max_in_flight, max_queued
        self._session: Session | None = None
        self._closed = False
        self._binding = threading.Lock()
        self.timings: Mapping[str, float] = {}
        """Seconds of each step of the compilation; empty for a loaded model."""
        self.kernels_cached: tuple[int, int] = (0, 0)
        """Distinct kernels found in the cache and kernels compiled; zeros for a loaded model."""
        self.tuning: Tuning | None = None
        """What tuning found, for the result of `mansard.tune`."""

    def __call__(
        self,
        *inputs: object,
        timeout: float | None = None,
        priority: int = 0,
        deadline: float | None = None,
        **named: object,
    ) -> Any:
        """Run the model and return its output, or a tuple of them.

        When more calls are made than run at a time, those with the highest ``priority`` begin first, also
        on devices that several models share. After ``timeout`` seconds the caller is let go and the
        call, if it has begun, goes on; after ``deadline`` seconds the call is given up (docs/serving.md).

        Raises InputError and ShapeContractError (naming the input, the dim and the contract), the
        original error of a device that failed, QueueFullError when too many calls wait,
        WaitTimeoutError after ``timeout`` and DeadlineExceededError after ``deadline`` seconds.
        """
        session = self.bind()
        prepared = session.signature.prepare(inputs, named)
        return _results(session.run(prepared, timeout, priority, deadline), prepared.torch)

    async def run_async(
        self, *inputs: object, priority: int = 0, deadline: float | None = None, **named: object
    ) -> Any:
        """Like calling, for asyncio: several calls run at once, and the event loop is not blocked.

        Leave input arrays unchanged until the result is there: they may be read in place. Cancelling the
        wait gives the call up, as a deadline does.
        """
        session = self.bind()
        prepared = session.signature.prepare(inputs, named)
        return _results(await session.run_async(prepared, priority, deadline), prepared.torch)

    def run_in_batches(
        self,
        *inputs: object,
        size: int | None = None,
        priority: int = 0,
        deadline: float | None = None,
        **named: object,
    ) -> Any:
        """Run a batch that is larger than one call takes: many calls in flight, their outputs joined.

        Inputs are cut along their first axis into calls of ``size`` (as a rule rows), up to ``max_in_flight``
        of them at a time, so that they go through the devices one behind the other. For a model whose
        batch varies, the last may be smaller, and without ``size`` there are as many calls as may run at a
        time, or more; any other model takes multiples of the batch it was compiled for. Inputs that do
        not depend on the batch go to every call whole. Nothing is copied to cut or join, where devices can
        use parts of the caller's arrays.

        Raises InputError when inputs and outputs have no batch axis in common, and for a model with
        states; else the first error of a call, and the others are given up. ``deadline`` is for all of it.
        """
        job = self.bind().in_batches(inputs, named, size, priority, deadline)
        return _results(job.run(), job.torch)

    async def run_in_batches_async(
        self,
        *inputs: object,
        size: int | None = None,
        priority: int = 0,
        deadline: float | None = None,
        **named: object,
    ) -> Any:
        """Like `run_in_batches`, for asyncio."""
        job = self.bind().in_batches(inputs, named, size, priority, deadline)
        return _results(await job.run_async(), job.torch)

    def profile(
        self,
        *inputs: object,
        requests: int = 1,
        in_flight: int | None = None,
        lockstep: bool = False,
        **named: object,
    ) -> Profile:
        """Run once and report the device times of every dispatch, or several times with requests in flight.

        ``requests`` calls with these inputs run, at most ``in_flight`` of them at a time (None: as many as
        the model takes); their recordings are made, and run once, beforehand. ``lockstep`` runs one batch of
        all devices together at a time, and one request after another: the same plan without overlap.
        Inputs named like these three are given by position. Raises InputError for counts out of range.
        """
        session = self.bind()
        prepared = session.signature.prepare(inputs, named)
        return session.profile(prepared, requests, in_flight, lockstep=lockstep)

    def explain(self) -> Explanation:
        """Which device runs each dispatch, and why."""
        precision = self.plan.info.get("precision", "f32")
        return Explanation(self.plan.decisions, dispatch_counts(self.plan), precision, self.plan.prediction)

    def save(self, path: str | os.PathLike[str], progress: Callable[[int, int], None] | None = None) -> None:
        """Write the model as one file, which `load` opens. ``progress`` gets (bytes done, bytes in all)."""
        write_artifact(path, self.plan, self._resources, progress)

    def bind(self) -> Session:
        """The model's session, made when first needed.

        Raises TargetMismatchError when a device the model was compiled for is not present.
        """
        if self._session is None:
            with self._binding:  # threads may make the first call together
                if self._session is None:
                    if self._closed:
                        raise MansardError("the model is closed")
                    self._session = Session(
                        self.plan,
                        self._resources,
                        self._devices,
                        max_in_flight=self._max_in_flight,
                        max_queued=self._max_queued,
                    )
        return self._session

    def reset_states(self) -> None:
        """Give every state (such as a KV cache) its initial contents."""
        self.bind().reset_states()

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """Name, element type and shape of every input, in call order."""
        return self.plan.inputs

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """Name, element type and shape of every output."""
        return self.plan.outputs

    @property
    def dims(self) -> tuple[dims.Dim, ...]:
        """The dims that vary, with their contracts."""
        chosen = self.plan.chosen_dims
        return tuple(dim for dim in self.plan.dims if dim.name not in chosen)

    @property
    def stats(self) -> Stats:
        """Counts of calls, contexts and copies so far."""
        return self.bind().stats

    @property
    def shares(self) -> list[Share]:
        """How dispatches divided over several devices are shared out to the next call: one entry for all
        that are divided alike (`PlacementOptions.split`)."""
        return self.bind().shares

    def memory(self) -> MemoryLedger:
        """What memory the model holds now, by use and device: a sequence of rows with sums.

        ``print(model.memory())`` shows a table, ``.summary()`` is one line, ``.to_json()`` plain data.
        Activations count the contexts of the shapes called so far.
        """
        return self.bind().memory()

    def close(self) -> None:
        """Wait for running calls and free the model's memory. Closing twice is allowed.

        Calls that queue, and later ones, raise MansardError: the model is closed.
        """
        with self._binding:
            self._closed = True
        if self._session is not None:
            self._session.close()
        self._resources.close()

    def __enter__(self) -> Model:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        devices = ", ".join(device.name for device in self.plan.devices)
        return f"<mansard.Model {self.plan.name!r} for {devices}>"


def _results(arrays: Sequence[Array], torch: bool) -> Any:
    values = tuple(to_torch(array) for array in arrays) if torch else tuple(arrays)
    return values[0] if len(values) == 1 else values


def _cost(cost: float | str) -> str:
    return f"{cost:.3g} ms" if isinstance(cost, float) else cost


def _texts(names: str | Sequence[str] | None) -> tuple[str, ...]:
    if names is None:
        return ()
    found = (names,) if isinstance(names, str) else tuple(names)
    for name in found:
        if not isinstance(name, str):
            raise CompileError(f"{name!r} is not the name of a device or target, such as 'cpu' or 'vulkan:1'")
    return found


def _default_devices() -> tuple[str, ...]:
    """The first hardware device of each driver; the CPU always."""
    found = {"cpu": "cpu"}
    for info in _registry.devices():
        if info.supported and info.kind not in ("software", "simulated"):
            found.setdefault(info.driver, info.id)
    return tuple(found.values())


def _placement(
    placement: PlacementOptions | None, objective: str | None, fallback: str | None
) -> PlacementOptions:
    import dataclasses

    from mansard.placement import PlacementOptions as Wish

    given = {"objective": objective, "fallback": fallback}
    changes = {name: value for name, value in given.items() if value is not None}
    if placement is not None and not isinstance(placement, Wish):
        raise PlacementError(
            f"placement={placement!r} is a {type(placement).__name__}, not a mansard.PlacementOptions"
        )
    return dataclasses.replace(placement or Wish(), **changes)  # type: ignore[arg-type]
