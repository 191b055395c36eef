"""Two devices that wait for each other: order, data, failures, hangs, loss; every test in both directions."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pytest

from mansard.errors import ExecutionError, MansardError, TargetMismatchError, WaitTimeoutError
from mansard.hal import (
    Buffer,
    BufferRef,
    Command,
    CopyCommand,
    Device,
    DeviceInfo,
    DispatchCommand,
    Executable,
    ExecutableSpec,
    FillCommand,
    Point,
    Semaphore,
    Submission,
)
from mansard.hal.threaded import Bytes, ThreadedDevice
from mansard.testing.adapter import WAIT, Adapter, Suite, Workbench

SOON = 0.03
"""Seconds in which something that must not happen would have happened."""
PAGE = 64 * 1024
"""Bytes of a buffer that crosses: a multiple of every page size, since some devices import whole pages."""
CHAIN = 1000


class PartnerDevice(ThreadedDevice):
    """Copies and fills memory of the host; has no kernels."""

    def load(self, spec: ExecutableSpec) -> Executable:
        """No executable is for it."""
        raise TargetMismatchError(f"{self.info.id} has no kernels")

    def run(self, command: DispatchCommand, memories: Sequence[Bytes]) -> None:
        """Nothing could be loaded to be dispatched."""
        raise ExecutionError(f"{self.info.id} has no kernels")


class PartnerAdapter(Adapter):
    """Opens partners, for `PairTests` alone."""

    def open(self) -> Device:
        """A partner of its own."""
        return PartnerDevice(DeviceInfo("partner", 0, "a partner", "partner", kind="simulated"), formats=())

    def spec(self, name: str) -> ExecutableSpec:
        """There is none."""
        raise TargetMismatchError("a partner has no kernels")

    def grid(self, name: str, count: int) -> tuple[int, int, int]:
        """There is none."""
        raise TargetMismatchError("a partner has no kernels")


@dataclass(frozen=True)
class Pair:
    """``target`` waits for ``source``."""

    source: Workbench
    target: Workbench

    @property
    def apart(self) -> bool:
        """Whether they are two devices."""
        return self.source.device is not self.target.device

    def crossing(self) -> tuple[Buffer, Buffer]:
        """Zeroed memory of both, as each of them has it."""
        for owner, other in ((self.source, self.target), (self.target, self.source)):
            memory = owner.shared(np.zeros(PAGE, dtype=np.uint8))
            seen = memory if owner.device is other.device else other.device.import_buffer(memory)
            if seen is not None:
                return (memory, seen) if owner is self.source else (seen, memory)
        pytest.skip(f"{self.source.device.info.id} and {self.target.device.info.id} share no memory")

    def skip_unless_computing(self) -> None:
        for device in (self.source.device, self.target.device):
            if device.capabilities.simulated:
                pytest.skip(f"{device.info.id} does not compute: capabilities.simulated is set")


def submit(bench: Workbench, *commands: Command, wait: Sequence[Point] = ()) -> Point:
    """Hand over commands as one submission; the point it signals."""
    done = Point(Semaphore(f"{bench.device.info.id} submission"), 1)
    bench.device.submit([Submission(bench.device.record(commands), tuple(wait), (done,))])
    return done


def host_point(label: str) -> Point:
    """The first point of a semaphore that the host signals."""
    return Point(Semaphore(label), 1)


class PairTests(Suite):
    """What holds between ``adapter``'s device and ``partner``'s."""

    partner: Adapter = PartnerAdapter()
    two_devices = True
    """Whether the partner is a second device; else the device is tested with itself."""

    @pytest.fixture(scope="class")
    @classmethod
    def other(cls, bench: Workbench) -> Iterator[Workbench]:
        """The partner's workbench."""
        if not cls.two_devices:
            yield bench
            return
        device = cls.partner.open()
        yield Workbench(cls.partner, device)
        device.close()

    @pytest.fixture(params=["to the partner", "from the partner"])
    def pair(self, request: pytest.FixtureRequest, bench: Workbench, other: Workbench) -> Iterator[Pair]:
        pair = Pair(bench, other) if request.param == "to the partner" else Pair(other, bench)
        yield pair
        for side in (bench, other):
            side.adapter.let_go(side.device)

    @pytest.fixture(params=["to the partner", "from the partner"])
    def broken(self, request: pytest.FixtureRequest) -> Iterator[Pair]:
        """Devices of their own, the source of which may be closed or lost."""
        if not self.two_devices:
            pytest.skip("one device has no partner to outlive it")
        ours, theirs = (Workbench(adapter, adapter.open()) for adapter in (self.adapter, self.partner))
        yield Pair(ours, theirs) if request.param == "to the partner" else Pair(theirs, ours)
        ours.device.close()
        theirs.device.close()

    # ---- order ----

    def test_the_one_waits_for_the_other(self, pair: Pair) -> None:
        gate = host_point("gate")
        first = submit(pair.source, wait=(gate,))
        second = submit(pair.target, wait=(first,))
        free = submit(pair.target)
        free.wait(WAIT)
        with pytest.raises(WaitTimeoutError, match=r"submission: value 1 was not reached.*seen is 0"):
            second.wait(SOON)
        gate.semaphore.signal(1)
        second.wait(WAIT)
        assert first.done()

    def test_what_the_one_wrote_the_other_reads(self, pair: Pair) -> None:
        pair.skip_unless_computing()
        rounds = 40
        written, read = pair.crossing()
        log = pair.target.shared(np.zeros(4 * rounds, dtype=np.uint8))
        rounds_done = Semaphore("rounds")
        writer, reader = pair.source.device, pair.target.device
        submissions: list[tuple[Device, Submission]] = []
        for i in range(rounds):
            fill = writer.record([FillCommand(BufferRef(written), PAGE, 0x01010101 * (i + 1))])
            at = BufferRef(read, PAGE - 4 * (i + 1))
            copy = reader.record([CopyCommand(at, BufferRef(log, 4 * i), 4)])
            points = [Point(rounds_done, 2 * i + k) for k in (1, 2, 3)]
            submissions.append((writer, Submission(fill, (points[0],), (points[1],))))
            submissions.append((reader, Submission(copy, (points[1],), (points[2],))))
        for device, submission in reversed(submissions):  # every one waits for what is handed over later
            device.submit([submission])
        rounds_done.signal(1)
        Point(rounds_done, 2 * rounds + 1).wait(WAIT)
        expected = [0x01010101 * (i + 1) for i in range(rounds)]
        assert log.view().view(np.uint32).tolist() == expected

    def test_what_the_host_wrote_both_read(self, pair: Pair) -> None:
        pair.skip_unless_computing()
        ours, theirs = pair.crossing()
        results = [side.shared(np.zeros(16, dtype=np.uint8)) for side in (pair.source, pair.target)]
        gate = host_point("host")
        done = [
            submit(side, CopyCommand(BufferRef(seen), BufferRef(result), 16), wait=(gate,))
            for side, seen, result in zip((pair.source, pair.target), (ours, theirs), results, strict=True)
        ]
        ours.view()[:16] = np.arange(16, dtype=np.uint8)
        gate.semaphore.signal(1)
        for point, result in zip(done, results, strict=True):
            point.wait(WAIT)
            assert result.view().tolist() == list(range(16))

    def test_points_complete_already(self, pair: Pair) -> None:
        first = submit(pair.source)
        first.wait(WAIT)
        reached = host_point("reached")
        reached.semaphore.signal(7)
        submit(pair.target, wait=(first, reached)).wait(WAIT)

    def test_points_of_both_and_of_the_host(self, pair: Pair) -> None:
        gates = [host_point(f"gate {i}") for i in range(3)]
        theirs = submit(pair.source, wait=gates[:1])
        ours = submit(pair.target, wait=gates[1:2])
        all_of_them = submit(pair.target, wait=(theirs, ours, gates[2]))
        for gate in gates:
            assert not all_of_them.done()
            gate.semaphore.signal(1)
        all_of_them.wait(WAIT)
        assert theirs.done() and ours.done()

    def test_points_signalled_out_of_order(self, pair: Pair) -> None:
        timeline, (early, late) = Semaphore("both ways"), (host_point("early"), host_point("late"))
        second = Submission(pair.source.empty(), (late,), (Point(timeline, 2),))
        fourth = Submission(pair.source.empty(), (early,), (Point(timeline, 4),))
        pair.source.device.submit([second, fourth])
        after = [submit(pair.target, wait=(Point(timeline, value),)) for value in (5, 3)]
        early.semaphore.signal(1)
        after[1].wait(WAIT)  # 4 completes all below it
        late.semaphore.signal(1)
        submit(pair.source, wait=(late,)).wait(WAIT)
        assert (timeline.value, after[0].done()) == (4, False)
        timeline.signal(5)
        after[0].wait(WAIT)

    def chain(self, pair: Pair) -> tuple[Point, Semaphore]:
        """Submissions of both in turns, each waiting for the one before; the first for the point returned."""
        gate, timeline = host_point("chain"), Semaphore("chain")
        sides = [(side.device, side.empty) for side in (pair.source, pair.target)]
        waits = [gate, *(Point(timeline, i) for i in range(1, CHAIN))]
        submissions = [
            (device, Submission(make(), (wait,), (Point(timeline, i + 1),)))
            for i, (wait, (device, make)) in enumerate(zip(waits, sides * (CHAIN // 2), strict=True))
        ]
        for device, submission in submissions:
            device.submit([submission])
        return gate, timeline

    def test_a_long_chain(self, pair: Pair) -> None:
        gate, timeline = self.chain(pair)
        assert timeline.value == 0
        gate.semaphore.signal(1)
        Point(timeline, CHAIN).wait(WAIT)

    def test_a_long_chain_fails(self, pair: Pair) -> None:
        gate, timeline = self.chain(pair)
        error = ExecutionError("at the top")
        gate.semaphore.fail(1, error)
        with pytest.raises(ExecutionError) as caught:
            Point(timeline, CHAIN).wait(WAIT)
        assert caught.value is error
        assert all(Point(timeline, value).error() is error for value in range(1, CHAIN + 1))

    def test_semaphores_that_nobody_holds_any_more(self, pair: Pair) -> None:
        gate = host_point("gate")

        def hidden() -> Point:
            middle = submit(pair.source, wait=(submit(pair.target, wait=(gate,)),))
            return submit(pair.target, wait=(middle,))

        last = hidden()
        gc.collect()
        assert not last.done()
        gate.semaphore.signal(1)
        last.wait(WAIT)

    # ---- failure ----

    def test_failure_crosses(self, pair: Pair) -> None:
        gate, error = host_point("gate"), ExecutionError("the original error")
        first = submit(pair.source, wait=(gate,))
        second = submit(pair.target, wait=(first,))
        gate.semaphore.fail(1, error)
        assert raised_by(second) is error
        assert first.error() is error

    def test_a_failing_batch_takes_its_dependants_alone(self, pair: Pair) -> None:
        target = pair.target.shared(np.full(16, 9, dtype=np.uint8))
        gate = host_point("gate")
        if not pair.source.adapter.fail_next(pair.source.device):
            pytest.skip(f"{pair.source.device.info.id} has no faults to inject")
        first = submit(pair.source)
        error = raised_by(first)
        assert isinstance(error, ExecutionError)
        second = submit(pair.target, FillCommand(BufferRef(target), 16, 1), wait=(first, gate))
        waiting = [Waiter(second) for _ in range(3)]
        submit(pair.target).wait(WAIT)
        submit(pair.source).wait(WAIT)
        assert not second.done()
        gate.semaphore.signal(1)
        for waiter in waiting:
            caught = waiter.result()
            assert (type(caught), str(caught)) == (type(error), str(error))
        assert target.view().tolist() == [9] * 16, "a submission whose wait failed must not run"

    def test_a_hang_holds_up_its_dependants_alone(self, pair: Pair) -> None:
        if not pair.source.adapter.hang_next(pair.source.device):
            pytest.skip(f"{pair.source.device.info.id} has no hangs to inject")
        first = submit(pair.source)
        second = submit(pair.target, wait=(first,))
        third = submit(pair.source, wait=(second,))
        if pair.apart:
            submit(pair.target).wait(WAIT)
        for point in (third, second, first):
            with pytest.raises(WaitTimeoutError):
                point.wait(SOON)
        pair.source.adapter.let_go(pair.source.device)
        for point in (third, second, first):
            point.wait(WAIT)

    def test_a_lost_device_takes_its_dependants_alone(self, broken: Pair) -> None:
        source, target = broken.source, broken.target
        gate, never = host_point("gate"), host_point("never")
        lost = submit(source, wait=(never,))
        dependant = submit(target, wait=(lost,))
        independent = submit(target, wait=(gate,))
        kind = source.adapter.lose(source.device)
        assert isinstance(raised_by(dependant), kind)
        assert isinstance(lost.error(), kind)
        gate.semaphore.signal(1)
        independent.wait(WAIT)
        submit(target).wait(WAIT)

    def test_a_wait_that_nobody_ends(self, broken: Pair) -> None:
        """Closing the device that waits ends it; the point's device is not concerned."""
        stuck = submit(broken.target, wait=(Point(Semaphore("dropped"), 1),))
        after = submit(broken.source, wait=(stuck,))
        with pytest.raises(WaitTimeoutError):
            after.wait(SOON)
        broken.target.device.close()
        assert "dropped" in str(raised_by(after))
        submit(broken.source).wait(WAIT)


def raised_by(point: Point) -> MansardError:
    """The error of a point that fails; a timeout is none."""
    with pytest.raises(MansardError) as caught:
        point.wait(WAIT)
    assert not isinstance(caught.value, WaitTimeoutError), str(caught.value)
    return caught.value


class Waiter:
    """A thread that waits for a point to fail."""

    def __init__(self, point: Point) -> None:
        self._errors: list[BaseException] = []
        self._thread = threading.Thread(target=self._run, args=(lambda: raised_by(point),))
        self._thread.start()

    def _run(self, wait: Callable[[], MansardError]) -> None:
        try:
            self._errors.append(wait())
        except BaseException as error:
            self._errors.append(error)

    def result(self) -> BaseException:
        """What the thread was told."""
        self._thread.join()
        return self._errors[0]
