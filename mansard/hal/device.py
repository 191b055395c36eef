"""The contract that drivers and devices fulfil."""

from __future__ import annotations

import abc
import enum
import functools
import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from mansard.errors import DeviceError, InputError
from mansard.hal.buffer import Buffer, MemoryKind
from mansard.hal.commands import Command
from mansard.hal.executable import Executable, ExecutableSpec
from mansard.hal.pool import BufferPool
from mansard.hal.queue import QueueRecord
from mansard.hal.semaphore import Point, Semaphore
from mansard.hal.swapping import ProgramArea


@dataclass(frozen=True)
class MemoryHeap:
    """One pool of physical memory."""

    size: int
    device_local: bool
    host_visible: bool


class QueueKind(enum.Enum):
    """Which queue of a device runs a recording."""

    COMPUTE = "compute"
    """A queue for dispatches, copies and fills."""
    TRANSFER = "transfer"
    """A queue for copies and fills that overlap with kernels, where there is one
    (``capabilities.transfer_queue``)."""
    LOAD = "load"
    """A queue for `LoadCommand`, which overlaps with kernels and copies, where programs are swapped
    (``capabilities.swaps_programs``)."""


@dataclass(frozen=True)
class MemoryType:
    """Memory of one heap with the same properties."""

    heap: int
    properties: tuple[str, ...]
    """device_local, host_visible, host_coherent, host_cached ..."""


@dataclass(frozen=True)
class QueueFamily:
    """Queues of one kind."""

    count: int
    abilities: tuple[str, ...]
    """compute, transfer, graphics, sparse_binding ..."""
    timestamps: bool
    """Whether work on them can be timed."""


@dataclass(frozen=True)
class Capabilities:
    """What a device can do, declared once; nothing is probed by name or ``hasattr``."""

    formats: tuple[str, ...]
    """Executable formats it loads, best first."""
    unified_memory: bool
    """Host and device share physical memory: SHARED buffers are as fast as DEVICE ones."""
    late_binding: bool
    """Accepts BindingSlot in recorded commands."""
    import_host: bool
    """`Device.import_host` shares memory instead of raising."""
    import_alignment: int
    """Bytes to which imported host pointers and sizes must be aligned."""
    max_allocation: int
    """Largest single buffer in bytes."""
    max_workgroup_invocations: int
    shared_memory_bytes: int
    """On-chip memory of one workgroup (0: none)."""
    features: frozenset[str] = frozenset()
    """Named abilities kernels and executables may require: CPU features (``avx512f``), or
    ``int64``, ``float16``, ``float64`` ... on a GPU."""
    profiling: bool = True
    """Reports the device time of every command."""
    compute_queues: int = 1
    """Queues for kernels, chosen by affinity (`Device.record`): their work overlaps where there is room."""
    transfer_queue: bool = False
    """Copies on `QueueKind.TRANSFER` run while kernels do; without it they go to the one queue."""
    transfer_bytes: int = 4 << 20
    """The smallest copy that pays off on the transfer queue. Below, the synchronisation of the queues costs
    more than the overlap gains (H200: 20 us for both ends; 4 MB take 100 us)."""
    transfer_profiling: bool = False
    """The transfer queue, too, reports the device time of every command."""
    host_threads: bool = False
    """Kernels run on threads of this process, which may take the core of the thread that submits them."""
    swaps_programs: bool = False
    """Programs can take turns in its memory (`Device.program_area`, `Device.load_swapped`), so that a model
    whose weights do not fit runs on it."""
    command_sequences: bool = False
    """Runs several command buffers one behind the other as one submission (`Submission.following`), between
    which less time passes than between submissions, and records variants of command buffers with other
    buffers (`Device.record_variant`)."""
    simulated: bool = False
    """Does not compute; results are undefined (the null driver)."""


HOST_DEVICE = "cpu"
"""The device that every machine has, by name: compiled for by default, and fallen back to."""
_NO_OTHER_PRODUCT = r"(?!\w)(?!\s+(?:Ti|SUPER|XT|XTX|GRE|Max|Pro|Ultra|D|Laptop|Mobile|PCIe)\b)"


@dataclass(frozen=True)
class DeviceInfo:
    """A device as listed by its driver, usable or not."""

    driver: str
    index: int
    name: str
    """Product name, such as ``AMD EPYC`` or ``NVIDIA H200``."""
    target: str
    """The target to compile for (``cpu:x86_64+...``, ``vulkan:1.3``)."""
    reasons: tuple[str, ...] = ()
    """Why the device is below the baseline; empty when it can be used."""
    api_version: str = ""
    driver_version: str = ""
    kind: str = ""
    """cpu, discrete, integrated, virtual, software, npu, emulated (by its vendor, on the host's cores) or
    simulated."""
    heaps: tuple[MemoryHeap, ...] = ()
    features: Mapping[str, bool] = field(default_factory=dict)
    limits: Mapping[str, int] = field(default_factory=dict)
    memory_types: tuple[MemoryType, ...] = ()
    queues: tuple[QueueFamily, ...] = ()
    extensions: tuple[str, ...] = ()
    """Extensions of the driver that are used."""

    @property
    def tier(self) -> str:
        """The baseline the device is held to, and whether it meets it: ``vulkan-1.3: supported``."""
        family = re.split(r"[+,]", self.target)[0].replace(":", "-")
        return f"{family}: {'supported' if self.supported else 'not supported'}"

    def is_product(self, part: str) -> bool:
        """Whether the device's name contains ``part``, and no word after it that makes it another product.

        ``GeForce RTX 4070`` is in ``NVIDIA GeForce RTX 4070 Ti``, which is another.
        """
        return re.search(rf"(?<!\w){re.escape(part)}{_NO_OTHER_PRODUCT}", self.name) is not None

    @property
    def on_host_cores(self) -> bool:
        """Whether the device computes on the host's cores: a CPU, or a GPU or an NPU in software."""
        return self.kind in ("cpu", "software", "emulated")

    @property
    def is_stand_in(self) -> bool:
        """Whether software stands in for hardware that is not there: no device that is used unasked, and its
        times say nothing."""
        return self.kind in ("simulated", "emulated")

    @property
    def supported(self) -> bool:
        """Whether the device can be opened."""
        return not self.reasons

    @property
    def id(self) -> str:
        """The name used on the command line: ``vulkan`` for the first, ``vulkan:1`` for the second."""
        return self.driver if self.index == 0 else f"{self.driver}:{self.index}"


@dataclass(frozen=True)
class ProfileRow:
    """Device time of one command of the last completed run of a command buffer.

    Times are nanoseconds of the host's monotonic clock (``time.monotonic_ns``), converted where
    the device has a clock of its own.
    """

    label: str
    start_ns: int
    end_ns: int


class CommandBuffer(abc.ABC):
    """A recorded, reusable list of commands. Not to be submitted again before its last run ended."""

    host_bytes: int = 0
    """Memory of the host that the recording takes, as far as the driver knows; for reports."""
    sequential: bool = False
    """Whether it can be one of several in a submission (`Submission.following`)."""

    @abc.abstractmethod
    def profile(self) -> Sequence[ProfileRow]:
        """One row per dispatch, copy and fill of the last completed run, in order.

        Empty unless recorded with ``profile=True`` on a device that can profile.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Release what the recording holds. Closing twice is allowed."""


@dataclass(frozen=True)
class Submission:
    """One unit of submission: run ``commands`` once every ``wait`` point is reached, then signal.

    ``bindings`` names the buffers of the commands' BindingSlots for this run. If a wait point
    failed, the commands do not run and every signal point fails with the same error; if the
    commands fail, every signal point fails with the error of that failure.
    """

    commands: CommandBuffer
    wait: tuple[Point, ...] = ()
    signal: tuple[Point, ...] = ()
    bindings: Mapping[int, Buffer] = field(default_factory=dict)
    following: tuple[CommandBuffer, ...] = ()
    """Command buffers that run behind ``commands``, each when the one before it has ended. Only on a device
    with `Capabilities.command_sequences`, for one queue, and if all are `CommandBuffer.sequential`."""


def refuse_sequences(submissions: Sequence[Submission]) -> None:
    """Raise DeviceError for several command buffers in a submission, on a device that does not take them."""
    if any(submission.following for submission in submissions):
        raise DeviceError("a submission to this device has one command buffer")


class Launcher(abc.ABC):
    """Submits one command buffer again and again, with as little work per run as possible.

    A run waits for no point, works on the caller's arrays in place and signals one point. Its errors
    are those of `Device.submit`.
    """

    @abc.abstractmethod
    def submit(self, value: int, arrays: Sequence[npt.NDArray[np.generic]]) -> None:
        """Submit one run that signals ``value``, with C-contiguous arrays bound to the slots 0, 1 ...

        The caller keeps the arrays and the command buffer alive until the point is complete.
        """


class Device(abc.ABC):
    """An open device. All methods may be called from any thread."""

    info: DeviceInfo
    capabilities: Capabilities

    @abc.abstractmethod
    def allocate(self, size: int, kind: MemoryKind = MemoryKind.DEVICE, label: str = "") -> Buffer:
        """A new buffer of ``size`` bytes, aligned to at least 256; raises OutOfMemoryError."""

    @functools.cached_property
    def pool(self) -> BufferPool:
        """Memory in the order of the device's queues: lent and taken back at points, without waiting."""
        return BufferPool(self.allocate)

    @abc.abstractmethod
    def import_host(self, array: npt.NDArray[np.generic], label: str = "") -> Buffer:
        """A buffer over the array's own memory, without a copy; it keeps the array alive.

        Raises DeviceError when the device cannot (see ``capabilities.import_host`` and
        ``import_alignment``).
        """

    @abc.abstractmethod
    def import_buffer(self, buffer: Buffer, label: str = "") -> Buffer | None:
        """A buffer of this device over another device's buffer, or None when memory is not shared."""

    @abc.abstractmethod
    def load(self, spec: ExecutableSpec) -> Executable:
        """Load compiled kernels; raises TargetMismatchError when the device lacks a requirement."""

    def load_all(self, specs: Sequence[ExecutableSpec]) -> list[Executable]:
        """Several executables in their order, as `load` gives them; by default one after the other. Where one
        cannot be loaded, none stays loaded. Drivers may still compile them (`Executable.wait`)."""
        loaded: list[Executable] = []
        with ExitStack() as undo:
            for spec in specs:
                executable = self.load(spec)
                undo.callback(executable.close)
                loaded.append(executable)
            undo.pop_all()
        return loaded

    def program_area(self, budget: int) -> ProgramArea:
        """``budget`` bytes of the device's memory in which programs take turns; raises OutOfMemoryError, and
        DeviceError on a device that does not declare ``capabilities.swaps_programs``."""
        raise DeviceError(f"{self.info.id} does not swap programs")

    def load_swapped(self, spec: ExecutableSpec, area: ProgramArea) -> Executable:
        """A program that is in memory of ``area`` while it is needed, instead of as long as it is open.

        Raises TargetMismatchError as `load`, OutOfMemoryError for one that is larger than the area.
        """
        raise DeviceError(f"{self.info.id} does not swap programs")

    @abc.abstractmethod
    def record(
        self,
        commands: Sequence[Command],
        *,
        profile: bool = False,
        queue: QueueKind = QueueKind.COMPUTE,
        affinity: int = 0,
    ) -> CommandBuffer:
        """Record commands for any number of later submissions, which go to the queue named here.

        ``affinity`` chooses among several compute queues: values that are equal modulo
        ``capabilities.compute_queues`` mean the same queue, and 0 the first. A device with one compute queue
        ignores it. A transfer queue takes copies, fills and barriers alone, and may be unable to profile; a
        load queue takes loads and evictions.
        """

    def record_variant(self, commands: CommandBuffer, buffers: Mapping[Buffer, Buffer]) -> CommandBuffer:
        """The commands of a recording with other buffers in place of some, for the same queue; takes less
        time than recording them anew. What a recording keeps beside its buffers is used together with it, so
        they must not run at the same time.

        On devices with `Capabilities.command_sequences`; others raise DeviceError, and so does a recording
        with a profile or for another queue than one for dispatches.
        """
        raise DeviceError(f"{self.info.id} records no variants of command buffers")

    @functools.cached_property
    def _affinities(self) -> Iterator[int]:
        return itertools.count()

    def next_affinity(self) -> int:
        """The queue affinity for the next user of the device, so that users are spread over its compute
        queues in rotation."""
        return next(self._affinities)

    @abc.abstractmethod
    def submit(self, submissions: Sequence[Submission]) -> None:
        """Hand over submissions and return at once; never waits for the device or for a wait point.

        Submissions are ordered by their points alone: a submission whose points are not reached does not
        hold back another.
        """

    def launcher(self, commands: CommandBuffer, semaphore: Semaphore) -> Launcher | None:
        """A quicker way to submit ``commands`` with one signal on ``semaphore`` and nothing to wait for.

        None where the device has none, or no use of the host's arrays in place: `submit` does the same.
        """
        return None

    def records(self) -> Sequence[QueueRecord]:
        """When the submissions that ended last were submitted, became ready, started and ended; oldest first.

        As far as the device keeps that, for reports; empty by default.
        """
        return ()

    @property
    def lost(self) -> bool:
        """Whether the device stopped answering for good, so that it has to be opened anew."""
        return False

    def when_idle(self, release: Callable[[], None]) -> None:
        """Call ``release``, which frees memory, once no call can access that which the device has given up
        on: at once, unless a library has not come back from one (`mansard.hal.vendor`)."""
        release()

    @abc.abstractmethod
    def close(self) -> None:
        """Wait for what runs, fail what still waits, and release the device."""


class Driver(abc.ABC):
    """The entry of a backend's runtime half: lists devices and opens them."""

    name: str

    @abc.abstractmethod
    def devices(self) -> Sequence[DeviceInfo]:
        """Every device found, also those below the baseline, with the reasons.

        A missing driver library or instance is one DeviceInfo with reasons, not an exception.
        """

    def configure(self, **settings: object) -> None:
        """Take settings for devices opened later; raises InputError naming those the driver does not have."""
        if settings:
            raise InputError(f"driver {self.name} has no setting {', '.join(settings)}")

    @abc.abstractmethod
    def open(self, info: DeviceInfo) -> Device:
        """Open one device; raises DeviceUnavailableError with the reasons when it is unsupported."""
