"""Which dispatches a persistent kernel runs, with made-up commands in place of those of a driver with PTX."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from support import ptx_kernels, vulkan_kernels, vulkan_support
from support.vulkan_kernels import ADD, WIDE

from mansard.drivers.vulkan.device import VulkanDevice
from mansard.drivers.vulkan.memory.buffer import VulkanBuffer
from mansard.drivers.vulkan.shaders.abi import BodyInfo, ShaderModule, join_body
from mansard.drivers.vulkan.shaders.executable import ExecutableLoader, VulkanExecutable
from mansard.drivers.vulkan.shaders.persistent import (
    COUNTERS,
    END,
    FILL,
    RECORD,
    THREADS,
    Record,
    StreamRecord,
)
from mansard.drivers.vulkan.submission.bridge import BARRIER, DISPATCH, LAUNCH
from mansard.drivers.vulkan.submission.command_stream import CommandStream
from mansard.drivers.vulkan.submission.encoder import Encoder
from mansard.drivers.vulkan.submission.persistent_runs import (
    MAX_BYTES,
    PersistentLaunch,
    PersistentRun,
    group,
    record_words,
)
from mansard.drivers.vulkan.submission.variants import prepared_with_buffers
from mansard.hal import (
    BarrierCommand,
    BufferRef,
    Command,
    CopyCommand,
    DispatchCommand,
    EntryPoint,
    ExecutableSpec,
    MemoryKind,
)
from mansard.hal.exchanges import Exchange
from mansard.hal.weight_streams import StreamOperand, WeightStream

pytestmark = pytest.mark.vulkan
BLOCKS = 8
ROWS, PART = 64, 512
STREAM = WeightStream(ROWS, 1, (StreamOperand(1, PART, 0),))


@pytest.fixture
def device() -> Iterator[VulkanDevice]:
    yield from vulkan_support.device_of_a_test()


class Kernels:
    """Kernels of a device that seems to run PTX: ``product`` reads binding 1 as a stream, ``small`` none;
    ``plain`` has no body. All write binding 2 of 3."""

    def __init__(self, device: VulkanDevice) -> None:
        context, self.commands = ptx_kernels.with_ptx(device)
        self.device, self.loader = device, ExecutableLoader(context)
        self.encoder = Encoder(context.setup, device._allocator, self.loader)
        self.product = self._load(ADD, BodyInfo(1024, (2,), STREAM))
        self.small = self._load(ADD, BodyInfo(0, (2,)))
        self.looking_up = self._load(ADD, BodyInfo(0, (2,), lookups=frozenset({1})))
        self.large = self._load(ADD, BodyInfo(40 << 10, (2,)))
        self.plain = self.loader.load(vulkan_kernels.spec(ADD))
        self.vector, self.weights, self.result = (
            self.device.allocate(ROWS * PART, MemoryKind.DEVICE) for _ in range(3)
        )

    def _load(self, entry: EntryPoint, info: BodyInfo, threads: int = THREADS) -> VulkanExecutable:
        spirv = vulkan_kernels.spec(entry)
        text = f"{{ // {info.shared}\nbra JOIN;\n}}\n".encode()
        body = ShaderModule("ptx-body", text, (), threads, info)
        code_format, code, requires = join_body(body, ShaderModule("bda", bytes(spirv.code), spirv.requires))
        return self.loader.load(ExecutableSpec(code_format, "vulkan:1.3", code, (entry,), requires))

    def dispatch(
        self,
        executable: VulkanExecutable,
        *,
        weights: BufferRef | None = None,
        result: BufferRef | None = None,
        grid: tuple[int, int, int] = (4, 1, 1),
    ) -> DispatchCommand:
        refs = (
            BufferRef(self.vector),
            weights or BufferRef(self.weights, 0, ROWS * PART),
            result or BufferRef(self.result, 0, 256),
        )
        return DispatchCommand(executable, ADD.name, refs, (1,), grid)


@pytest.fixture
def kernels(device: VulkanDevice) -> Iterator[Kernels]:
    kernels = Kernels(device)
    yield kernels
    kernels.loader.close()
    assert not kernels.commands.texts and not kernels.commands.functions


def shape(items: Sequence[Command | PersistentRun]) -> list[object]:
    """Runs as what they wait behind, other commands as the first letters of their types."""
    return [
        [d.waits for d in item.dispatches] if isinstance(item, PersistentRun) else type(item).__name__[0]
        for item in items
    ]


B = BarrierCommand()


def test_products_and_what_is_between_them(kernels: Kernels) -> None:
    product, small = kernels.dispatch(kernels.product), kernels.dispatch(kernels.small)
    assert shape(group([product, B, small, small, B, product, B], BLOCKS)) == [
        [True, False, True, False],
        "B",
    ]
    assert shape(group([product], BLOCKS)) == ["D"], "one dispatch is no run"
    assert shape(group([small, B, small, B, small], BLOCKS)) == ["D", "B", "D", "B", "D"], "no stream"
    assert shape(group([B, product, B, product], BLOCKS)) == ["B", [True, False]]
    assert group([], BLOCKS) == []


def test_barriers_within_a_run_are_also_for_what_is_around_it(kernels: Kernels) -> None:
    product, plain = kernels.dispatch(kernels.product), kernels.dispatch(kernels.plain)
    assert shape(group([plain, product, B, product, B], BLOCKS)) == ["D", "B", [True, False], "B"]
    assert shape(group([product, B, product, plain], BLOCKS)) == [[True, False], "B", "D"]
    assert shape(group([plain, product, product, plain], BLOCKS)) == ["D", [False, False], "D"]
    writes = kernels.dispatch(kernels.small, result=BufferRef(kernels.vector, 512, 64))
    reads = kernels.dispatch(kernels.product, weights=BufferRef(kernels.vector, 0, ROWS * PART))
    items = group([writes, B, product, reads, product], BLOCKS)
    assert shape(items) == [[True, False], "B", [False, False]], "copies of a stream wait for nothing else"


def test_what_ends_a_run(kernels: Kernels) -> None:
    product, plain = kernels.dispatch(kernels.product), kernels.dispatch(kernels.plain)
    copy = CopyCommand(BufferRef(kernels.vector), BufferRef(kernels.result), 64)
    pair = [product, B, product, B]
    for other in (plain, copy, kernels.dispatch(kernels.large)):
        expected = [[True, False], "B", type(other).__name__[0], "B", [True, False], "B"]
        assert shape(group([*pair, other, B, *pair], BLOCKS)) == expected


def test_large_dispatches_without_a_stream_are_not_taken(kernels: Kernels) -> None:
    product = kernels.dispatch(kernels.product)
    for grid, taken in (((4 * BLOCKS, 1, 1), True), ((4 * BLOCKS + 1, 1, 1), False), ((1, 2, 1), False)):
        items = group([product, product, kernels.dispatch(kernels.small, grid=grid)], BLOCKS)
        assert len(items) == (1 if taken else 2), grid
    assert len(group([product, kernels.dispatch(kernels.product, grid=(1000, 1, 1))], BLOCKS)) == 1


def test_tables_may_be_large(kernels: Kernels) -> None:
    """Of which a dispatch reads some rows."""
    product, few = kernels.dispatch(kernels.product), MAX_BYTES // (ROWS * PART)
    table = BufferRef(kernels.weights, 0, (few + 1) * ROWS * PART)
    looking_up = kernels.dispatch(kernels.looking_up, weights=table)
    assert shape(group([looking_up, B, product], BLOCKS)) == [[True, False]]
    reading = kernels.dispatch(kernels.small, weights=table)
    assert shape(group([reading, B, product], BLOCKS)) == ["D", "B", "D"]
    writing = kernels.dispatch(kernels.looking_up, result=table)
    assert shape(group([writing, B, product], BLOCKS)) == ["D", "B", "D"]


def test_a_stream_of_results_waits_for_them(kernels: Kernels) -> None:
    """Copies do not wait: what the run itself writes is no constant."""
    product = kernels.dispatch(kernels.product)
    writes = kernels.dispatch(kernels.small, result=BufferRef(kernels.weights, 512, 64))
    reads = kernels.dispatch(kernels.product, weights=BufferRef(kernels.weights, 0, ROWS * PART))
    assert shape(group([product, product, B, writes, B, reads, B, product], BLOCKS)) == [
        [False, True, False],
        "B",
        [True, False],
    ]
    beside = kernels.dispatch(kernels.small, result=BufferRef(kernels.result, 512, 64))
    assert len(group([product, B, beside, B, reads], BLOCKS)) == 1


def test_a_stream_needs_all_of_its_bytes(kernels: Kernels) -> None:
    product = kernels.dispatch(kernels.product)
    for ref in (
        BufferRef(kernels.weights, 0, ROWS * PART - 4),
        BufferRef(kernels.weights, 256),
        BufferRef(kernels.weights, 8),
    ):
        short = kernels.dispatch(kernels.product, weights=ref)
        assert shape(group([product, B, product, B, short], BLOCKS)) == [[True, False], "B", "D"]


def test_records(kernels: Kernels) -> None:
    product, small = kernels.dispatch(kernels.product), kernels.dispatch(kernels.small)
    (run,) = group([product, B, small, product], BLOCKS)
    assert isinstance(run, PersistentRun)
    assert run.label == "add and 2 more"
    tables = {id(product): [1, 2, 3, 1], id(small): [4, 5, 6, 1]}
    words = record_words(run, lambda command: tables[id(command)], BLOCKS, 0)
    stream = StreamRecord(STREAM, (2,)).words()
    assert words == [
        *Record(0, BLOCKS, [1, 2, 3, 1], True).words(),
        *Record(1, 4, [4, 5, 6, 1], False).words(),
        *Record(0, BLOCKS, [1, 2, 3, 1], False).words(),
        *[0] * (COUNTERS // 8),
        *stream,
        *stream,
        *run.schedule.words(),
    ]
    assert run.schedule.lists == ((0, 1, 2),) * 4 + ((0, 2),) * 4


def test_dispatches_take_blocks_in_turn(kernels: Kernels) -> None:
    """Between products: what does not depend on each other runs on different blocks."""
    product, small = kernels.dispatch(kernels.product), kernels.dispatch(kernels.small)
    (run,) = group([product, small, small, small, product], BLOCKS)
    assert isinstance(run, PersistentRun)
    assert run.schedule.starts == (0, 0, 4, 0, 0)
    records = record_words(run, lambda command: [1, 2, 3, 1], BLOCKS, 0)
    assert [(records[n * RECORD // 8 + 1] & END) >> 1 for n in range(5)] == [0, 0, 4, 0, 0]


def test_records_of_exchanged_values(kernels: Kernels) -> None:
    """They lie behind the records of streams, and are empty at first."""
    exchange = Exchange(frozenset({0, 2}), frozenset({2}))
    passing = kernels._load(ADD, BodyInfo(0, (2,), None, exchange))
    reads = kernels._load(ADD, BodyInfo(0, (2,), None, exchange))
    vector, result = BufferRef(kernels.vector, 0, 256), BufferRef(kernels.result, 0, 256)

    def passed(executable: VulkanExecutable, source: BufferRef, target: BufferRef) -> DispatchCommand:
        refs = (source, BufferRef(kernels.weights, 0, 256), target)
        return DispatchCommand(executable, ADD.name, refs, (), (4, 1, 1))

    product = kernels.dispatch(kernels.product, result=BufferRef(kernels.result, 1024, 256))
    first, second = passed(passing, vector, result), passed(reads, result, vector)
    (run,) = group([first, B, second, B, passed(passing, vector, result), B, second, B, product], BLOCKS)
    assert isinstance(run, PersistentRun)
    assert run.exchanges.size == 512
    start = 1 << 32
    words = record_words(run, lambda command: [10, 11, 12], BLOCKS, start)
    assert run.bytes == 8 * len(words) and words[-64:] == [(1 << 64) - 1] * 64
    values = start + run.exchange_start
    records = [words[n * RECORD // 8 :] for n in range(5)]
    assert [record[4:7] for record in records] == [
        [10, 11, values],
        [values, 11, values + 256],
        [values + 256, 11, 12],
        *([10, 11, 12],) * 2,
    ]
    assert [record[1] >> 32 for record in records] == [0b100, 0b101, 0b001, 0, 0]
    emptied = [(record[2], record[3]) for record in records if record[3]]
    assert sum(units for _, units in emptied) == 512 // FILL
    assert [start for start, _ in emptied] == [values] if len(emptied) == 1 else [values, values + 256]


def test_records_of_renamed_values(kernels: Kernels) -> None:
    """They lie behind exchanged ones, and nobody polls for them."""
    exchange = Exchange(frozenset(), frozenset({2}))
    writing = kernels._load(ADD, BodyInfo(0, (2,), None, exchange))
    vector, weights = BufferRef(kernels.vector, 0, 256), BufferRef(kernels.weights, 0, 256)
    passed_on = BufferRef(kernels.result, 4096, 256, transient=True)

    def passed(source: BufferRef, target: BufferRef) -> DispatchCommand:
        return DispatchCommand(writing, ADD.name, (source, weights, target), (), (4, 1, 1))

    commands: list[Command] = []
    for n in range(3):
        result = BufferRef(kernels.result, 256 * n, 256)
        commands += [passed(vector, passed_on), B, passed(passed_on, result), B]
    product = kernels.dispatch(kernels.product, result=BufferRef(kernels.result, 1024, 256))
    (run, _) = group([*commands, product, B], BLOCKS)
    assert isinstance(run, PersistentRun)
    assert run.exchanges.size == 0 and run.bytes == run.renamed_start + run.exchanges.renaming.size
    start = 1 << 32
    words = record_words(run, lambda command: [10, 11, 12], BLOCKS, start)
    assert run.renamed_start == 8 * len(words), "nobody reads renamed values before they are written"
    records = [words[n * RECORD // 8 :] for n in range(6)]
    first, second = (start + run.renamed_start + place for place in (0, 256))
    assert [d.waits for d in run.dispatches] == [True, False, True, False, True, False, False]
    assert [record[6] for record in records[::2]] == [first, second, first]
    assert [record[4] for record in records[1::2]] == [first, second, first]
    assert all(record[1] >> 32 == 0 for record in records)


def test_what_is_recorded(kernels: Kernels) -> None:
    encoder = kernels.encoder
    commands = [kernels.dispatch(kernels.product), B, kernels.dispatch(kernels.small), B]
    commands.append(kernels.dispatch(kernels.plain))
    prepared = encoder.prepared(commands)
    launch = prepared[0]
    assert isinstance(launch, PersistentLaunch)
    again = encoder.prepared(commands)[0]
    assert isinstance(again, PersistentLaunch)
    assert again.kernel is launch.kernel, "the driver compiles the same bodies once"
    stream = CommandStream(profile=False)
    kept = encoder.encode(prepared, stream)
    assert {launch.kernel, launch.records, kernels.product, kernels.small, kernels.plain} <= set(kept)
    assert launch.staged not in kept, "records are copied once"
    words, found = stream.finish(), []
    while words:
        count = words[0] >> 8
        found.append((words[0] & 0xFF, words[1 : 1 + count]))
        del words[: 1 + count]
    kinds = [kind for kind, _ in found]
    assert [kind for kind in kinds if kind in (LAUNCH, DISPATCH)] == [LAUNCH, DISPATCH]
    assert BARRIER in kinds
    start, blocks = launch.records.address, encoder.blocks
    run = launch.run
    streams = start + 2 * RECORD + COUNTERS
    table = [start, start + 2 * RECORD, run.schedule.stride, streams, 1, start + run.schedule_start]
    launched = next(words for kind, words in found if kind == LAUNCH)
    assert launched == [launch.kernel.function, blocks | 1 << 32, 1 | THREADS << 32, *table]


def test_variants_use_the_same_records(kernels: Kernels) -> None:
    """Unless these name the buffer in whose place there is another one."""
    host = kernels.device.allocate(8192, MemoryKind.SHARED)
    given = CopyCommand(BufferRef(host), BufferRef(kernels.vector), 64)
    product = kernels.dispatch(kernels.product)
    prepared = kernels.encoder.prepared([given, B, product, B, product])
    copy, _, launch = prepared
    assert isinstance(copy, CopyCommand) and isinstance(launch, PersistentLaunch)
    other = kernels.device.allocate(8192, MemoryKind.SHARED)
    variant = prepared_with_buffers(prepared, {host: other})
    assert variant is not None and variant[1:] == prepared[1:]
    assert isinstance(variant[0], CopyCommand)
    assert (variant[0].source.buffer, variant[0].target.buffer) == (other, kernels.vector)
    assert prepared_with_buffers(prepared, {kernels.vector: other}) is None


def test_records_reach_the_device(device: VulkanDevice, kernels: Kernels) -> None:
    commands = [kernels.dispatch(kernels.product), B, kernels.dispatch(kernels.product)]
    (launch,) = kernels.encoder.prepared(commands)
    assert isinstance(launch, PersistentLaunch)
    device._copy_records([launch])
    back = device.allocate(launch.records.size, MemoryKind.SHARED)
    assert isinstance(back, VulkanBuffer)
    back.view()[:] = 255
    vulkan_support.run(device, CopyCommand(BufferRef(launch.records), BufferRef(back), launch.records.size))
    assert bytes(back.view()) == bytes(launch.staged.view())


def test_a_device_without_ptx_dispatches_it(device: VulkanDevice, kernels: Kernels) -> None:
    loaded = device.load(kernels.product.spec)
    assert isinstance(loaded, VulkanExecutable)
    assert (loaded.pipelines[ADD.name].body is None) == ("ptx_sm_90a" not in device.capabilities.features)
    assert kernels.product.pipelines[ADD.name].body is not None


def test_long_argument_tables_are_not_taken(kernels: Kernels) -> None:
    wide = kernels._load(WIDE, BodyInfo(0, (0,)))
    params = tuple(range(20))
    command = DispatchCommand(wide, WIDE.name, (BufferRef(kernels.result),), params, (1, 1, 1))
    product = kernels.dispatch(kernels.product)
    assert len(group([product, command, product], BLOCKS)) == 1
    long = DispatchCommand(wide, WIDE.name, (BufferRef(kernels.result),) * 11, params, (1, 1, 1))
    assert shape(group([product, product, long], BLOCKS)) == [[False, False], "D"]
