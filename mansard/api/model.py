"""`Model`: a compiled model, bound to devices on its first call."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from mansard import dims
from mansard.api.arguments import call_arguments
from mansard.api.explanation import Explanation
from mansard.api.results import result_builder
from mansard.arguments import shown
from mansard.artifact.assets import checked_assets
from mansard.artifact.resources import Resources, write_artifact
from mansard.errors import InputError, MansardError
from mansard.hal.service import uninterrupted
from mansard.plan.plan import Plan, TensorSpec
from mansard.runtime.calls.stats import Stats
from mansard.runtime.devices.binding import Devices
from mansard.runtime.execution.partition_shares import Share
from mansard.runtime.memory.ledger import MemoryLedger
from mansard.runtime.profiling.profile import Profile
from mansard.runtime.session import MAX_IN_FLIGHT, MAX_QUEUED, Session, check_limits, dispatch_counts

if TYPE_CHECKING:
    from mansard.api.quantization import QuantizationReport
    from mansard.tuning import Tuning


class Model:
    """A compiled model. Call it with NumPy arrays, torch tensors or anything with ``__dlpack__``.

    A model of PyTorch is called as its module is: by position and by name, with nested arguments, with the
    module's defaults, and returns what the module returns (`Interface`); others take their inputs in order or
    by name, and return a single output as it is, several as a tuple. Torch inputs give torch outputs, all
    others NumPy arrays. A model may be called from several threads at once. It is a context manager; `close`
    frees its memory.
    """

    def __init__(
        self,
        plan: Plan,
        resources: Resources,
        devices: Devices = None,
        *,
        max_in_flight: int = MAX_IN_FLIGHT,
        max_queued: int | None = MAX_QUEUED,
        shared: Model | None = None,
    ) -> None:
        check_limits(max_in_flight, max_queued)
        if not isinstance(plan, Plan) or not isinstance(resources, Resources):
            raise InputError(
                f"a Model takes a plan and resources, not a {type(plan).__name__} and a "
                f"{type(resources).__name__}; mansard.load and mansard.compile make one"
            )
        self.plan = plan
        interface = plan.interface
        names = [spec.name for spec in plan.inputs]
        self._arguments = call_arguments(interface, names)
        self._build_result = result_builder(interface.result if interface is not None else None)
        self._resources = resources
        self._devices = devices
        self._max_in_flight, self._max_queued = max_in_flight, max_queued
        self._session: Session | None = None
        self._shared = shared
        self._methods: dict[str, Model] = {}
        self._closed = False
        self._binding = threading.Lock()
        self.timings: Mapping[str, float] = {}
        """Seconds of each step of the compilation; empty for a loaded model."""
        self.kernels_cached: tuple[int, int] = (0, 0)
        """Distinct kernels found in the cache and kernels compiled; zeros for a loaded model."""
        self.tuning: Tuning | None = None
        """The result of the search, for a model returned by `mansard.tune`."""

    def __call__(
        self,
        *inputs: object,
        timeout: float | None = None,
        priority: int = 0,
        deadline: float | None = None,
        **named: object,
    ) -> Any:
        """Run the model and return its output, or a tuple of them.

        When more calls arrive than may run at a time, those with the highest ``priority`` begin first, also
        on devices that several models share. After ``timeout`` seconds the wait ends and the call, if it
        has begun, continues in the background; after ``deadline`` seconds the call is cancelled
        (docs/serving.md).

        Raises InputError and ShapeContractError (naming the input, the dim and the contract), the
        original error of a device that failed, QueueFullError when too many calls wait,
        WaitTimeoutError after ``timeout`` and DeadlineExceededError after ``deadline`` seconds.
        """
        session = self.bind()
        prepared = session.signature.prepare(*self._flattened(inputs, named))
        return self._build_result(session.run(prepared, timeout, priority, deadline), prepared.torch)

    async def run_async(
        self, *inputs: object, priority: int = 0, deadline: float | None = None, **named: object
    ) -> Any:
        """Like calling the model, for asyncio: the event loop is not blocked, and several calls may run.

        Leave input arrays unchanged until the call has completed: they may be read in place. Cancelling the
        wait cancels the call, as a deadline does.
        """
        session = self.bind()
        prepared = session.signature.prepare(*self._flattened(inputs, named))
        return self._build_result(await session.run_async(prepared, priority, deadline), prepared.torch)

    def run_in_batches(
        self,
        *inputs: object,
        size: int | None = None,
        priority: int = 0,
        deadline: float | None = None,
        **named: object,
    ) -> Any:
        """Run a batch that is larger than one call takes as several calls in flight, and join their outputs.

        Inputs are split along their first axis into chunks of ``size`` (usually rows), one call each, with
        up to ``max_in_flight`` calls pipelined through the devices. For a model whose batch size varies, the
        last chunk may be smaller, and by default there are as many chunks as calls may be in flight, or
        more; any other model takes multiples of the batch size it was compiled for. Inputs that do not
        depend on the batch are passed to every call whole. Splitting and joining copy nothing where devices
        can use views of the caller's arrays.

        Raises InputError when inputs and outputs have no batch axis in common, and for a model with
        states; otherwise the first error of a call, after which the remaining calls are cancelled.
        ``deadline`` applies to the whole batch.
        """
        chunked = self.bind().chunked_run(*self._flattened(inputs, named), size, priority, deadline)
        return self._build_result(chunked.run(), chunked.torch)

    async def run_in_batches_async(
        self,
        *inputs: object,
        size: int | None = None,
        priority: int = 0,
        deadline: float | None = None,
        **named: object,
    ) -> Any:
        """Like `run_in_batches`, for asyncio."""
        chunked = self.bind().chunked_run(*self._flattened(inputs, named), size, priority, deadline)
        return self._build_result(await chunked.run_async(), chunked.torch)

    def profile(
        self,
        *inputs: object,
        requests: int = 1,
        in_flight: int | None = None,
        lockstep: bool = False,
        **named: object,
    ) -> Profile:
        """Run the model with profiling and report the device time of every dispatch.

        ``requests`` calls with these inputs run, at most ``in_flight`` of them at a time (None: as many as
        the model allows); command buffers are recorded, and run once, before timing starts. ``lockstep`` runs
        one submission at a time across all devices, and one request after another: the same plan without
        overlap. Inputs that have the name of one of these three parameters must be passed by position.
        Raises InputError for counts out of range.
        """
        session = self.bind()
        prepared = session.signature.prepare(*self._flattened(inputs, named))
        return session.profile(prepared, requests, in_flight, lockstep=lockstep)

    def _flattened(
        self, args: tuple[object, ...], named: Mapping[str, object]
    ) -> tuple[Sequence[object], Mapping[str, object]]:
        return (args, named) if self._arguments is None else self._arguments.flatten(args, named)

    def explain(self) -> Explanation:
        """The device of each dispatch, and why it was chosen."""
        precision = self.plan.info.get("precision", "f32")
        return Explanation(self.plan.decisions, dispatch_counts(self.plan), precision, self.plan.prediction)

    def save(
        self,
        path: str | os.PathLike[str],
        progress: Callable[[int, int], None] | None = None,
        *,
        assets: Mapping[str, bytes] | None = None,
    ) -> None:
        """Write the model to one file, for `load`. ``progress`` is called with (bytes written, total).

        ``assets`` are files that travel with the model for those who use it, such as the names of its
        classes: ``{"labels.txt": b"cat\\ndog\\n"}``. A loaded model keeps those it has; one of the same name
        takes their place. Raises ArtifactError for a name that is no relative path and for a file that cannot
        be written.
        """
        write_artifact(path, self.plan, self._resources, progress, checked_assets(assets))

    @property
    def assets(self) -> Sequence[str]:
        """The names of the files that travel with the model (`save`)."""
        return self._resources.assets

    def asset(self, name: str) -> bytes:
        """The content of one of `assets`; its hash is checked. Raises ArtifactError for one that the model
        does not have, naming those it has, and for a damaged one."""
        return self._resources.asset(name)

    def bind(self) -> Session:
        """The model's session, created on first use.

        Raises TargetMismatchError when a device the model was compiled for is not present.
        """
        return uninterrupted(self._open) if self._session is None else self._session

    def _open(self) -> Session:
        with self._binding:  # several threads may make the first call
            if self._session is None:
                if self._closed:
                    raise MansardError("the model is closed")
                self._session = Session(
                    self.plan,
                    self._resources,
                    self._devices,
                    max_in_flight=self._max_in_flight,
                    max_queued=self._max_queued,
                    shared=self._shared.bind() if self._shared else None,
                )
            return self._session

    def method(self, name: str) -> Model:
        """A further entry point of the model, to be called like it: it runs on the same devices with the same
        weights and states, and is closed with the model.

        Raises InputError for a name that the model has no method of, naming those it has.
        """
        if name not in self.plan.methods:
            known = ", ".join(self.plan.methods) or "none"
            raise InputError(f"the model has no method {shown(name)}; its methods: {known}")
        with self._binding:
            if name not in self._methods:
                self._methods[name] = Model(
                    self.plan.methods[name],
                    self._resources,
                    self._devices,
                    max_in_flight=self._max_in_flight,
                    max_queued=self._max_queued,
                    shared=self,
                )
            return self._methods[name]

    def reset_states(self) -> None:
        """Give every state (such as a KV cache) its initial contents."""
        self.bind().reset_states()

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """Name, element type and shape of every input, in call order."""
        return self.plan.inputs

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """Name, element type and shape of every output, those in a structure in order."""
        return self.plan.outputs

    @property
    def dims(self) -> tuple[dims.Dim, ...]:
        """The dims that vary, with their contracts."""
        chosen = self.plan.chosen_dims
        return tuple(dim for dim in self.plan.dims if dim.name not in chosen)

    @property
    def quantization(self) -> QuantizationReport | None:
        """What `mansard.quantize` did to the model: errors by layer, agreement, sizes; None for others."""
        from mansard.api.quantization import report_of

        return report_of(self.plan)

    @property
    def stats(self) -> Stats:
        """Counts of calls, contexts and copies so far."""
        return self.bind().stats

    @property
    def shares(self) -> list[Share]:
        """How the next call divides dispatches that are partitioned over several devices: one entry for all
        that are partitioned alike (`PlacementOptions.split`)."""
        return self.bind().shares

    def memory(self) -> MemoryLedger:
        """The memory that the model holds now, by use and device: a sequence of rows with totals.

        ``print(model.memory())`` shows a table, ``.summary()`` is one line, ``.to_json()`` plain data.
        Activations count the contexts of the shapes called so far.
        """
        return self.bind().memory()

    def close(self) -> None:
        """Wait for running calls and free the model's memory. Closing twice is allowed.

        Queued calls, and later ones, raise MansardError: the model is closed.
        """
        with self._binding:
            self._closed = True
        for method in self._methods.values():
            method.close()
        if self._session is not None:
            self._session.close()
        if self._shared is None:
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
