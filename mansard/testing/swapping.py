"""Programs that take turns in a device's memory: what a device that declares ``swaps_programs`` must do."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest

from mansard.errors import DeviceError, ExecutionError, MansardError, OutOfMemoryError
from mansard.hal import (
    BarrierCommand,
    BufferRef,
    Command,
    DispatchCommand,
    EvictCommand,
    Executable,
    LoadCommand,
    MemoryKind,
    Point,
    ProgramArea,
    QueueKind,
    Semaphore,
    Submission,
    SwappedExecutable,
)
from mansard.testing.adapter import WAIT, Suite, Workbench

COUNT = 16


class _Programs:
    """``fill_index`` and ``add`` in an area that holds one of them."""

    def __init__(self, bench: Workbench) -> None:
        self.bench, device = bench, bench.device
        large = device.program_area(64 << 20)
        probes = [self._swapped(name, large) for name in ("fill_index", "add")]
        size = max(probe.size for probe in probes)
        for probe in probes:
            probe.close()
        large.close()
        self.area = device.program_area(size)
        self.fill, self.add = (self._swapped(name, self.area) for name in ("fill_index", "add"))

    def _swapped(self, name: str, area: ProgramArea) -> SwappedExecutable:
        executable = self.bench.device.load_swapped(self.bench.adapter.spec(name), area)
        assert isinstance(executable, SwappedExecutable) and executable.entries[name].name == name
        return executable

    def commands(self, start: int) -> tuple[list[Command], npt.NDArray[np.int32]]:
        """Both programs one after the other, and what the first writes: ``start``, ``start`` + 1 ... The
        second one adds zeros, which `check` looks at."""
        device, grid = self.bench.device, self.bench.adapter.grid
        buffers = [device.allocate(4 * COUNT, MemoryKind.SHARED) for _ in range(3)]
        numbers, zeros, sums = buffers
        zeros.view()[:] = 0
        count = grid("fill_index", COUNT)
        fill = DispatchCommand(self.fill, "fill_index", (BufferRef(numbers),), (COUNT, 1, start), count)
        add = DispatchCommand(
            self.add, "add", tuple(map(BufferRef, (zeros, zeros, sums))), (COUNT,), grid("add", COUNT)
        )
        sums.view()[:] = 255
        steps: list[Command] = [fill, EvictCommand(self.fill), BarrierCommand(), add, EvictCommand(self.add)]
        self.sums = sums
        return steps, numbers.view().view(np.int32)

    def check(self) -> None:
        """The second program of the latest commands has run."""
        np.testing.assert_array_equal(self.sums.view().view(np.float32), np.zeros(COUNT, np.float32))

    def close(self) -> None:
        self.fill.close()
        self.add.close()
        self.area.close()


class SwapTests(Suite):
    """Contract of `Device.program_area` and `Device.load_swapped`."""

    @pytest.fixture
    def programs(self, bench: Workbench) -> Iterator[_Programs]:
        made = _Programs(bench)
        yield made
        made.close()

    def test_programs_take_turns(self, bench: Workbench, programs: _Programs) -> None:
        assert bench.device.capabilities.swaps_programs
        area = programs.area
        for start in (5, 9):
            commands, numbers = programs.commands(start)
            bench.run(*commands)
            np.testing.assert_array_equal(numbers, np.arange(COUNT) + start)
            programs.check()
        assert area.loads == 4 and area.peak <= area.budget

    def test_a_load_goes_before_its_dispatch(self, bench: Workbench, programs: _Programs) -> None:
        """On the load queue, behind a point; what is there already is not loaded again."""
        gate, timeline = Semaphore("gate"), Semaphore("loads")
        load = bench.device.record([LoadCommand(programs.fill)], profile=True, queue=QueueKind.LOAD)
        bench.device.submit([Submission(load, (Point(gate, 1),), (Point(timeline, 1),))])
        assert programs.area.used == 0
        gate.signal(1)
        Point(timeline, 1).wait(WAIT)
        assert programs.area.used == programs.fill.size and len(load.profile()) == 1
        commands, numbers = programs.commands(3)
        bench.run(*commands)
        np.testing.assert_array_equal(numbers, np.arange(COUNT) + 3)
        assert programs.area.loads == 2

    def test_a_load_leaves_awaited_programs_alone(self, bench: Workbench, programs: _Programs) -> None:
        """It does not wait for memory either: its dispatch does."""
        bench.run(LoadCommand(programs.fill))
        bench.run(LoadCommand(programs.add))
        assert programs.fill.loaded is not None and programs.add.loaded is None
        commands, numbers = programs.commands(1)
        bench.run(*commands)
        np.testing.assert_array_equal(numbers, np.arange(COUNT) + 1)
        programs.check()

    def test_calls_in_flight_share_an_area(self, bench: Workbench, programs: _Programs) -> None:
        submissions, results = [], []
        for number in range(12):
            commands, numbers = programs.commands(number)
            ahead = bench.device.record([LoadCommand(programs.fill)], queue=QueueKind.LOAD)
            recorded = bench.device.record(commands)
            timeline = Semaphore(f"call {number}")
            points = Point(timeline, 1), Point(timeline, 2)
            submissions += [Submission(ahead, (), points[:1]), Submission(recorded, points[:1], points[1:])]
            results.append((points[1], numbers))
        bench.device.submit(submissions)
        for number, (done, values) in enumerate(results):
            done.wait(WAIT)
            np.testing.assert_array_equal(values, np.arange(COUNT) + number)
        assert programs.area.peak <= programs.area.budget

    def test_a_failed_wait_loads_nothing(self, bench: Workbench, programs: _Programs) -> None:
        failed, done = Semaphore("failed"), Semaphore("done")
        failed.fail(1, ExecutionError("no input"))
        load = bench.device.record([LoadCommand(programs.fill)], queue=QueueKind.LOAD)
        bench.device.submit([Submission(load, (Point(failed, 1),), (Point(done, 1),))])
        with pytest.raises(ExecutionError, match="no input"):
            Point(done, 1).wait(WAIT)
        assert programs.area.loads == 0

    def test_what_is_too_large_is_refused(self, bench: Workbench) -> None:
        area = bench.device.program_area(0)
        with pytest.raises(OutOfMemoryError, match=r"a program of \d+ bytes does not fit an area of 0"):
            bench.device.load_swapped(bench.adapter.spec("add"), area)
        area.close()

    def test_what_is_always_loaded_is_not_loaded_by_commands(self, bench: Workbench) -> None:
        always: Executable = bench.executable("add")
        for command in (LoadCommand(always), EvictCommand(always)):
            with pytest.raises(DeviceError, match="programs of an area"):
                bench.device.record([command], queue=QueueKind.LOAD)

    def test_the_load_queue_takes_nothing_else(self, bench: Workbench) -> None:
        out = bench.shared(np.zeros(COUNT, np.int32))
        dispatch = bench.dispatch("fill_index", (out,), (COUNT, 1, 0), COUNT)
        with pytest.raises(DeviceError, match="loads, evictions and barriers alone"):
            bench.device.record([dispatch], queue=QueueKind.LOAD)

    def test_a_lost_device_fails_what_would_load(self, fresh: Workbench) -> None:
        programs = _Programs(fresh)
        commands, _ = programs.commands(0)
        recorded = fresh.device.record(commands)
        kind: type[MansardError] = fresh.adapter.lose(fresh.device)
        done = Point(Semaphore("lost"), 1)
        with pytest.raises((kind, DeviceError)):
            fresh.device.submit([Submission(recorded, signal=(done,))])
            done.wait(WAIT)
        programs.close()
