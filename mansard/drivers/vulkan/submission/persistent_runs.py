"""Which dispatches of a recording run in a persistent kernel, and their records in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mansard.drivers.vulkan.memory.buffer import VulkanBuffer
from mansard.drivers.vulkan.shaders import weight_streams
from mansard.drivers.vulkan.shaders.executable import VulkanExecutable
from mansard.drivers.vulkan.shaders.persistent import (
    COUNTERS,
    MAX_WORDS,
    RECORD,
    Body,
    PersistentKernel,
    Record,
    StreamRecord,
    fits,
    memory_beside,
    slots_of,
)
from mansard.drivers.vulkan.shaders.weight_streams import Slots
from mansard.drivers.vulkan.submission.block_schedule import BlockSchedule, Share, schedule
from mansard.drivers.vulkan.submission.exchange_plan import ExchangePlan, plan
from mansard.drivers.vulkan.submission.run_values import Range, bytes_of, overlap
from mansard.hal.commands import BarrierCommand, BufferRef, Command, CopyCommand, DispatchCommand
from mansard.hal.weight_streams import ALIGNMENT

MIN_DISPATCHES = 2
"""Dispatches of a run."""
MAX_ROUNDS = 4
"""Workgroups that a block runs one after another: larger dispatches fill the device better by themselves."""
LARGE_SHARED = 8 << 10
"""Bytes of shared memory from which on a workgroup computes more than it loads: then there is one round."""
MAX_BYTES = 64 << 20
"""The largest buffer of a dispatch without a stream, but for tables: memory bandwidth bounds one that reads
more, and more invocations than a persistent kernel has use it better."""
MAX_TEXT = 64 << 10
"""Characters of a body: larger ones take the driver's compiler longer than they gain."""


@dataclass(frozen=True)
class PersistentDispatch:
    """A dispatch of a run."""

    command: DispatchCommand
    body: Body
    waits: bool
    """Whether a barrier follows."""


@dataclass(frozen=True)
class PersistentRun:
    """Successive dispatches and the barriers between them, which one persistent kernel runs."""

    dispatches: tuple[PersistentDispatch, ...]
    exchanges: ExchangePlan
    schedule: BlockSchedule
    ordered: bool
    """Whether there are barriers between its commands, which are for what is before and behind it too."""

    @property
    def schedule_start(self) -> int:
        """Where the blocks' lists begin, in bytes: behind the records, the counters and the records of
        streams."""
        return RECORD * len(self.dispatches) + COUNTERS + weight_streams.RECORD * self.streams

    @property
    def exchange_start(self) -> int:
        """Where the memory of exchanged values begins, in bytes: behind the blocks' lists."""
        return self.schedule_start + self.schedule.bytes

    @property
    def renamed_start(self) -> int:
        """Where the memory of renamed values begins, in bytes: behind that of exchanged ones."""
        return self.exchange_start + self.exchanges.size

    @property
    def bytes(self) -> int:
        """Bytes of all that a launch reads beside the dispatches' buffers."""
        return self.renamed_start + self.exchanges.renaming.size

    def arguments(self, start: int) -> list[int]:
        """The kernel's argument table where its records begin at the address ``start``."""
        counters = start + RECORD * len(self.dispatches)
        lists = start + self.schedule_start
        return [start, counters, self.schedule.stride, counters + COUNTERS, self.streams, lists]

    @property
    def bodies(self) -> list[Body]:
        """The bodies of the dispatches, each once."""
        return list(dict.fromkeys(dispatch.body for dispatch in self.dispatches))

    @property
    def streams(self) -> int:
        """How many dispatches read a stream."""
        return sum(dispatch.body.stream is not None for dispatch in self.dispatches)

    @property
    def label(self) -> str:
        """For traces and debuggers."""
        first = self.dispatches[0].command
        return f"{first.label or first.entry} and {len(self.dispatches) - 1} more"


@dataclass(frozen=True)
class PersistentLaunch:
    """A run with its compiled kernel, and its records in host memory, to be copied once."""

    run: PersistentRun
    kernel: PersistentKernel
    records: VulkanBuffer
    """Where the kernel reads them."""
    staged: VulkanBuffer


def group(commands: Sequence[Command], blocks: int) -> list[Command | PersistentRun]:
    """The commands, in which successive dispatches that read streams, and small ones between them, are runs
    for persistent kernels of so many blocks.

    Without a stream a run gains too little to be worth a kernel that holds the whole device.
    """
    slots = slots_of({body for command in commands if (body := _body(command)) is not None})
    if slots is None:
        return list(commands)
    items: list[Command | PersistentRun] = []
    pending: list[Command] = []
    for number, command in enumerate(commands):
        taken = body_of(command, blocks, slots) is not None
        if not taken and not (pending and isinstance(command, BarrierCommand)):
            items += _joined(pending, commands, number, blocks, slots)
            pending = []
            items.append(command)
            continue
        if _reads_results(command, pending):
            items += _joined(pending, commands, number, blocks, slots)
            pending = []
        pending.append(command)
    return _apart(items + _joined(pending, commands, len(commands), blocks, slots))


def _apart(items: Sequence[Command | PersistentRun]) -> list[Command | PersistentRun]:
    """The items with a barrier between a run and its neighbours, where one was among the run's commands: a
    dispatch behind it may read what one before it has written."""
    out: list[Command | PersistentRun] = []
    for item in items:
        both = (item, out[-1]) if out else ()
        if any(isinstance(x, PersistentRun) and x.ordered for x in both) and not any(
            isinstance(x, BarrierCommand) for x in both
        ):
            out.append(BarrierCommand())
        out.append(item)
    return out


def body_of(command: Command, blocks: int, slots: Slots) -> Body | None:
    """The body that runs a command in a persistent kernel of so many blocks with these slots; None where it
    has to be dispatched."""
    body = _body(command)
    if body is None or not fits(body, slots):
        return None
    assert isinstance(command, DispatchCommand)
    x, y, z = command.grid
    if y != 1 or z != 1 or len(command.bindings) + len(command.params) > MAX_WORDS:
        return None
    if body.stream is not None:
        return body if all(_holds(ref, size) for ref, size in _stream_refs(command, body)) else None
    rounds = 1 if body.info.shared > LARGE_SHARED else MAX_ROUNDS
    read = [ref for binding, ref in enumerate(command.bindings) if binding not in body.info.lookups]
    largest = max((ref.size or 0 for ref in read), default=0)
    at_once = blocks * body.together(memory_beside(slots))
    small = 0 < x <= rounds * at_once and largest <= MAX_BYTES and len(body.text) <= MAX_TEXT
    return body if small else None


def record_words(
    run: PersistentRun, table: Callable[[DispatchCommand], Sequence[int]], blocks: int, start: int
) -> list[int]:
    """The records of a run, the counters, the records of its streams, the blocks' lists, and empty exchanged
    values, in memory that begins at the address ``start``, up to `PersistentRun.renamed_start`; ``table``
    gives a dispatch's argument table."""
    exchanges, values, renamed = run.exchanges, start + run.exchange_start, start + run.renamed_start
    numbers = {body: number for number, body in enumerate(run.bodies)}
    words: list[int] = []
    streams: list[int] = []
    for number, dispatch in enumerate(run.dispatches):
        body, addresses, groups = dispatch.body, list(table(dispatch.command)), dispatch.command.grid[0]
        for binding in range(len(dispatch.command.bindings)):
            if (number, binding) in exchanges.places:
                addresses[binding] = values + exchanges.places[number, binding]
            elif (number, binding) in exchanges.renaming.places:
                addresses[binding] = renamed + exchanges.renaming.places[number, binding]
        if body.stream is not None:
            groups = blocks
            operands = tuple(addresses[operand.binding] for operand in body.stream.operands)
            streams += StreamRecord(body.stream, operands).words()
        first, end = exchanges.emptied[number]
        record = Record(
            numbers[body],
            groups,
            addresses,
            dispatch.waits,
            exchanges.polls(number),
            (values + first, end - first) if end > first else (0, 0),
            run.schedule.starts[number],
        )
        words += record.words()
    empty = [(1 << 64) - 1] * (exchanges.size // 8)
    return words + [0] * (COUNTERS // 8) + streams + run.schedule.words() + empty


def _body(command: Command) -> Body | None:
    if not isinstance(command, DispatchCommand) or not isinstance(command.executable, VulkanExecutable):
        return None
    pipeline = command.executable.pipelines.get(command.entry)
    return pipeline.body if pipeline is not None else None


def _joined(
    pending: list[Command], commands: Sequence[Command], end: int, blocks: int, slots: Slots
) -> list[Command | PersistentRun]:
    """Dispatches and barriers as a run, and the barrier behind the last dispatch; as they are where no run is
    worth it. They are the last of ``commands`` before the number ``end``."""
    places = [i for i, command in enumerate(pending) if isinstance(command, DispatchCommand)]
    dispatches: list[tuple[DispatchCommand, Body]] = []
    waits = []
    for place, following in zip(places, [*places[1:], places[-1] + 1] if places else [], strict=True):
        command, body = pending[place], body_of(pending[place], blocks, slots)
        assert isinstance(command, DispatchCommand) and body is not None
        dispatches.append((command, body))
        waits.append(following - place > 1)
    if len(dispatches) < MIN_DISPATCHES or all(body.stream is None for _, body in dispatches):
        return list(pending)
    later = [bytes_of(ref) for command in commands[end:] for ref in _references(command)]
    return [run_of(dispatches, waits, blocks, later), *pending[places[-1] + 1 :]]


def run_of(
    dispatches: Sequence[tuple[DispatchCommand, Body]],
    waits: Sequence[bool],
    blocks: int,
    later: Sequence[Range] = (),
) -> PersistentRun:
    """The run of dispatches on so many blocks; the other arguments are those of `exchange_plan.plan`."""
    exchanges = plan(dispatches, waits, later)
    both = zip(dispatches, exchanges.waits, strict=True)
    parts = tuple(PersistentDispatch(*dispatch, wait) for dispatch, wait in both)
    shares = [_share(part, emptied) for part, emptied in zip(parts, exchanges.emptied, strict=True)]
    return PersistentRun(parts, exchanges, schedule(shares, blocks), any(waits))


def _share(dispatch: PersistentDispatch, emptied: Range) -> Share:
    groups = dispatch.command.grid[0] if dispatch.body.stream is None else None
    return Share(groups, dispatch.waits or emptied[1] > emptied[0])


def _references(command: Command) -> Sequence[BufferRef]:
    """What a command may read."""
    if isinstance(command, DispatchCommand):
        return command.bindings
    return [command.source] if isinstance(command, CopyCommand) else []


def _stream_refs(command: DispatchCommand, body: Body) -> list[tuple[BufferRef, int]]:
    """The bindings of a stream's operands, and the bytes that are read of each."""
    stream = body.stream
    assert stream is not None
    sizes = [stream.rows * stream.parts * operand.part for operand in stream.operands]
    refs = [command.bindings[operand.binding] for operand in stream.operands]
    return list(zip(refs, sizes, strict=True))


def _holds(ref: BufferRef, size: int) -> bool:
    """Whether a binding has so many bytes, at an address that copies can begin at."""
    start, end = bytes_of(ref)
    return start % ALIGNMENT == 0 and size <= end - start


def _reads_results(command: Command, before: Sequence[Command]) -> bool:
    """Whether a stream reads what dispatches of the same run write: its copies do not wait for these."""
    body = _body(command)
    if body is None or body.stream is None:
        return False
    assert isinstance(command, DispatchCommand)
    read = [bytes_of(ref) for ref, _ in _stream_refs(command, body)]
    return any(
        overlap(bytes_of(writing.bindings[binding]), streamed)
        for writing in before
        if isinstance(writing, DispatchCommand) and (writer := _body(writing)) is not None
        for binding in writer.info.writes
        for streamed in read
    )
