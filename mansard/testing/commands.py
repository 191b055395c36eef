"""Recorded commands: what they compute, in which order, and how they are reported."""

from __future__ import annotations

import itertools
import time

import numpy as np
import numpy.typing as npt
import pytest

from mansard.errors import DeviceError, TargetMismatchError
from mansard.hal import (
    BarrierCommand,
    BindingSlot,
    Buffer,
    BufferRef,
    Command,
    CopyCommand,
    DispatchCommand,
    ExecutableSpec,
    FillCommand,
    MemoryKind,
    Point,
    ProgramArea,
    QueueKind,
    Semaphore,
    Submission,
)
from mansard.testing.adapter import Suite, Workbench, computes


def _zeros(bench: Workbench, count: int) -> tuple[Buffer, npt.NDArray[np.int32]]:
    buffer = bench.shared(np.zeros(count, dtype=np.int32))
    return buffer, buffer.view().view(np.int32)


class CommandTests(Suite):
    """Contract of `Device.load`, `record` and the commands."""

    def test_an_unknown_format_is_refused(self, bench: Workbench) -> None:
        spec = ExecutableSpec("no-such-format", "nowhere", b"\0" * 64, ())
        with pytest.raises(TargetMismatchError, match="no-such-format"):
            bench.device.load(spec)

    def test_programs_take_turns_where_the_device_says_so(self, bench: Workbench) -> None:
        spec = bench.adapter.spec("add")
        if bench.device.capabilities.swaps_programs:
            area = bench.device.program_area(1 << 20)
            bench.device.load_swapped(spec, area).close()
            assert area.used == area.loads == 0
            area.close()
        else:
            with pytest.raises(DeviceError, match="does not swap programs"):
                bench.device.program_area(1 << 20)
            with pytest.raises(DeviceError, match="does not swap programs"):
                bench.device.load_swapped(spec, ProgramArea(1 << 20))

    def test_a_missing_requirement_is_named(self, bench: Workbench) -> None:
        good = bench.adapter.spec("add")
        requires = (*good.requires, "no_such_feature")
        spec = ExecutableSpec(good.format, good.target, good.code, good.entries, requires)
        with pytest.raises(TargetMismatchError, match="no_such_feature"):
            bench.device.load(spec)

    @computes
    @pytest.mark.parametrize("pattern", [0, 0xDEADBEEF, 1])
    def test_fill(self, bench: Workbench, pattern: int) -> None:
        buffer, values = _zeros(bench, 1000)
        values[:] = -5
        bench.run(FillCommand(BufferRef(buffer, 40), 400, pattern))
        expected = np.full(1000, -5, dtype=np.int32)
        expected[10:110] = np.uint32(pattern).view(np.int32)
        np.testing.assert_array_equal(values, expected)

    @computes
    def test_work_of_both_queues_in_the_order_of_its_points(self, bench: Workbench) -> None:
        data, timeline = np.arange(1000, dtype=np.int32), Semaphore("queues")
        source, (middle, _), (target, values) = bench.shared(data), _zeros(bench, 1000), _zeros(bench, 1000)
        steps: list[tuple[QueueKind, Command]] = [
            (QueueKind.TRANSFER, CopyCommand(BufferRef(source), BufferRef(middle), 4000)),
            (QueueKind.COMPUTE, FillCommand(BufferRef(middle, 400), 400, 7)),
            (QueueKind.TRANSFER, CopyCommand(BufferRef(middle), BufferRef(target), 4000)),
        ]
        recorded = [bench.device.record([command], queue=queue) for queue, command in steps]
        points = [Point(timeline, number) for number in range(4)]
        bench.device.submit(
            [Submission(each, (points[n],), (points[n + 1],)) for n, each in enumerate(recorded)]
        )
        points[-1].wait(60)
        data[100:200] = 7
        np.testing.assert_array_equal(values, data)

    @computes
    def test_work_of_every_queue_affinity_in_the_order_of_its_points(self, bench: Workbench) -> None:
        count, timeline = 2 * bench.device.capabilities.compute_queues + 1, Semaphore("affinities")
        buffers = [_zeros(bench, 1000) for _ in range(count + 1)]
        buffers[0][1][...] = np.arange(1000)
        recorded = [
            bench.device.record(
                [CopyCommand(BufferRef(buffers[n][0]), BufferRef(buffers[n + 1][0]), 4000)], affinity=n
            )
            for n in range(count)
        ]
        points = [Point(timeline, number) for number in range(count + 1)]
        bench.device.submit(
            [Submission(each, (points[n],), (points[n + 1],)) for n, each in enumerate(recorded)]
        )
        points[-1].wait(60)
        np.testing.assert_array_equal(buffers[-1][1], np.arange(1000))

    @computes
    def test_command_buffers_of_one_submission_run_one_behind_the_other(self, bench: Workbench) -> None:
        device, count = bench.device, 5
        buffers = [_zeros(bench, 1000) for _ in range(count + 1)]
        (first, *_), refs = buffers, [BufferRef(buffer) for buffer, _ in buffers]
        first[1][...] = np.arange(1000)
        commands = [CopyCommand(one, other, 4000) for one, other in itertools.pairwise(refs)]
        recorded = [device.record([command]) for command in commands]
        done, following = Point(Semaphore("sequence"), 1), tuple(recorded[1:])
        other, values = _zeros(bench, 1000)
        if not device.capabilities.command_sequences:
            with pytest.raises(DeviceError):
                device.submit([Submission(recorded[0], (), (done,), following=following)])
            with pytest.raises(DeviceError):
                device.record_variant(recorded[0], {buffers[1][0]: other})
            return
        assert all(each.sequential for each in recorded)
        device.submit([Submission(recorded[0], (), (done,), following=following)])
        done.wait(60)
        np.testing.assert_array_equal(buffers[-1][1], np.arange(1000))
        first[1][...] += 1
        bench.replay(device.record_variant(recorded[0], {buffers[1][0]: other}))
        np.testing.assert_array_equal(values, np.arange(1, 1001))
        np.testing.assert_array_equal(buffers[1][1], np.arange(1000))

    def test_affinities_are_handed_out_in_rotation(self, bench: Workbench) -> None:
        first = bench.device.next_affinity()
        assert [bench.device.next_affinity() - first for _ in range(4)] == [1, 2, 3, 4]

    @computes
    def test_copy_with_offsets(self, bench: Workbench) -> None:
        data = np.arange(1000, dtype=np.int32)
        source, (target, values) = bench.shared(data), _zeros(bench, 1000)
        bench.run(CopyCommand(BufferRef(source, 400), BufferRef(target, 80), 2000))
        expected = np.zeros(1000, dtype=np.int32)
        expected[20:520] = data[100:600]
        np.testing.assert_array_equal(values, expected)

    @computes
    def test_large_copy_and_fill(self, bench: Workbench) -> None:
        count = 1_000_003
        source, seen = _zeros(bench, count)
        target, values = _zeros(bench, count)
        bench.run(
            FillCommand(BufferRef(source), 4 * count, 0x01020304),
            BarrierCommand(),
            CopyCommand(BufferRef(source), BufferRef(target), 4 * count),
        )
        assert set(np.unique(seen)) == set(np.unique(values)) == {0x01020304}

    @computes
    @pytest.mark.parametrize("count", [1, 15, 64, 1000, 100_003])
    def test_dispatch_covers_its_grid(self, bench: Workbench, count: int) -> None:
        buffer, values = _zeros(bench, count + 8)
        bench.run(bench.dispatch("fill_index", (buffer,), (count, -3, 1 << 20), count))
        np.testing.assert_array_equal(values[:count], np.arange(count) * -3 + (1 << 20))
        assert not values[count:].any()

    @computes
    def test_every_element_is_computed_once(self, bench: Workbench) -> None:
        count = 70_001
        total = bench.shared(np.zeros(count, dtype=np.float32))
        one = bench.shared(np.ones(count, dtype=np.float32))
        add = bench.add(total, one, total, count)
        bench.run(*(command for _ in range(20) for command in (add, BarrierCommand())))
        np.testing.assert_array_equal(total.view().view(np.float32), np.full(count, 20))

    @computes
    def test_bindings_take_offsets(self, bench: Workbench) -> None:
        buffer, values = _zeros(bench, 300)
        bench.run(bench.dispatch("fill_index", (BufferRef(buffer, 400),), (100, 1, 1), 100))
        np.testing.assert_array_equal(values[100:200], np.arange(100) + 1)
        assert not values[:100].any()
        assert not values[200:].any()

    @computes
    def test_a_table_of_21_words(self, bench: Workbench) -> None:
        params = [(-1) ** i * (1 << i * 3) for i in range(20)]
        out = bench.shared(np.zeros(1, dtype=np.int64))
        bench.run(bench.dispatch("wide", (out,), params, 1))
        assert out.view().view(np.int64)[0] == sum(params)

    @computes
    def test_barriers_order_a_chain(self, bench: Workbench) -> None:
        count, steps = 10_000, 20
        a = bench.shared(np.zeros(count, dtype=np.float32))
        b = bench.shared(np.zeros(count, dtype=np.float32))
        one = bench.shared(np.ones(count, dtype=np.float32))
        step = (
            bench.add(a, one, b, count),
            BarrierCommand(),
            CopyCommand(BufferRef(b), BufferRef(a), 4 * count),
            BarrierCommand(),
            FillCommand(BufferRef(b), 4 * count),
            BarrierCommand(),
        )
        bench.run(*step * steps)
        np.testing.assert_array_equal(a.view().view(np.float32), np.full(count, steps))
        assert not b.view().any()

    @computes
    def test_a_recording_runs_again(self, bench: Workbench) -> None:
        count = 1000
        total = bench.shared(np.zeros(count, dtype=np.float32))
        step = bench.shared(np.ones(count, dtype=np.float32))
        recorded = bench.device.record([bench.add(total, step, total, count)])
        for _ in range(3):
            bench.replay(recorded)
        step.view().view(np.float32)[:] = 10
        bench.replay(recorded)
        np.testing.assert_array_equal(total.view().view(np.float32), np.full(count, 13))
        recorded.close()
        recorded.close()

    @computes
    def test_slots_are_bound_at_submission(self, bench: Workbench) -> None:
        out = BufferRef(BindingSlot(1), 8)
        dispatch = DispatchCommand(
            bench.executable("fill_index"),
            "fill_index",
            (out,),
            (50, 1, 0),
            bench.adapter.grid("fill_index", 50),
        )
        if not bench.device.capabilities.late_binding:
            with pytest.raises(DeviceError):
                bench.device.record([dispatch])
            return
        recorded = bench.device.record(
            [dispatch, CopyCommand(BufferRef(BindingSlot(0)), BufferRef(BindingSlot(1)), 8)]
        )
        header = bench.shared(np.array([7, 8], dtype=np.int32))
        for _ in range(3):
            target, values = _zeros(bench, 60)
            bench.replay(recorded, bindings={0: header, 1: target})
            np.testing.assert_array_equal(values, [7, 8, *range(50), *[0] * 8])

    @computes
    def test_a_missing_binding_is_reported(self, bench: Workbench) -> None:
        fill = FillCommand(BufferRef(BindingSlot(0)), 64)
        if not bench.device.capabilities.late_binding:
            with pytest.raises(DeviceError):
                bench.device.record([fill])
            return
        recorded = bench.device.record([fill])
        with pytest.raises(DeviceError, match="slot 0"):
            bench.replay(recorded)
        small = bench.device.allocate(60)
        with pytest.raises(DeviceError, match="64"):
            bench.replay(recorded, bindings={0: small})

    @computes
    def test_profile_rows(self, bench: Workbench) -> None:
        count = 50_000
        buffer, _ = _zeros(bench, count)
        before = time.monotonic_ns()
        recorded = bench.run(
            bench.dispatch("fill_index", (buffer,), (count, 1, 1), count, label="index"),
            BarrierCommand(),
            FillCommand(BufferRef(buffer), 4 * count, label="clear"),
            BarrierCommand(),
            CopyCommand(BufferRef(buffer), BufferRef(buffer, 2 * count), 64, label="move"),
        )
        after = time.monotonic_ns()
        rows = recorded.profile()
        if not bench.device.capabilities.profiling:
            assert list(rows) == []
            return
        assert [row.label for row in rows] == ["index", "clear", "move"]
        assert all(row.start_ns <= row.end_ns for row in rows)
        assert [r.start_ns for r in rows] == sorted(r.start_ns for r in rows)
        # Clocks of devices are converted; a millisecond is far more than they may be off.
        slack = 1_000_000
        assert before - slack <= rows[0].start_ns
        assert rows[-1].end_ns <= after + slack

    def test_no_profile_unless_asked_for(self, bench: Workbench) -> None:
        recorded = bench.device.record([FillCommand(BufferRef(bench.device.allocate(64)), 64)])
        bench.replay(recorded)
        assert list(recorded.profile()) == []

    def test_no_profile_before_the_first_run(self, bench: Workbench) -> None:
        buffer = bench.device.allocate(64, MemoryKind.SHARED)
        recorded = bench.device.record([FillCommand(BufferRef(buffer), 64)], profile=True)
        assert list(recorded.profile()) == []
