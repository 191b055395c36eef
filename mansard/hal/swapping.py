"""Programs that take turns in a part of a device's memory, for models whose weights it does not hold at once.

A device that declares ``capabilities.swaps_programs`` has *program areas* (`Device.program_area`). A program
of an area (`Device.load_swapped`) is in the device's memory only while it is needed: a `LoadCommand` brings
it in ahead of its dispatch, an `EvictCommand` says that the call is done with it, and its memory goes to
whichever program comes next. Several calls in flight share an area: what one has loaded, another one finds.

Loading ahead never waits for memory, so that it cannot block what would free some: where all programs in the
area are in use or awaited, the command does nothing, and the dispatch loads its program itself. Only
dispatches wait, each for one program, while others run: nobody who waits holds what another one waits for.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import itertools
import threading
from collections.abc import Callable, Iterator
from types import MappingProxyType

from mansard.errors import DeviceError, MansardError, OutOfMemoryError
from mansard.hal.commands import DispatchCommand
from mansard.hal.executable import Executable, ExecutableSpec


class _State(enum.Enum):
    OUT = enum.auto()
    LOADING = enum.auto()
    IN = enum.auto()


class SwappedExecutable(Executable):
    """A program of an area. ``bring_in`` loads it and returns the executable that runs, whose ``close`` gives
    its memory back; ``size`` is how many bytes of the area it takes meanwhile."""

    def __init__(
        self, spec: ExecutableSpec, size: int, area: ProgramArea, bring_in: Callable[[], Executable]
    ) -> None:
        self.spec, self.size, self.area = spec, max(1, size), area
        self.entries = MappingProxyType({entry.name: entry for entry in spec.entries})
        self.bring_in = bring_in
        self.loaded: Executable | None = None
        """What runs, while it is in the area."""
        self.state, self.users = _State.OUT, 0
        self.awaited, self.retired = False, False
        """Loaded ahead, and not run yet; run, and not needed again by the call that ran it."""
        self.used_at = 0
        area.add(self)

    @contextlib.contextmanager
    def held(self) -> Iterator[Executable]:
        """The executable that runs, which stays in the area until the end of the ``with`` block."""
        self.area.acquire(self)
        try:
            assert self.loaded is not None
            yield self.loaded
        finally:
            self.area.release(self)

    def prefetch(self) -> bool:
        """See `ProgramArea.prefetch`."""
        return self.area.prefetch(self)

    def retire(self) -> None:
        """See `ProgramArea.retire`."""
        self.area.retire(self)

    def close(self) -> None:
        """Leave the area, when no dispatch uses the program any more."""
        self.area.remove(self)


class ProgramArea:
    """``budget`` bytes of a device's memory in which programs take turns. Thread-safe.

    The first to leave are those that calls are done with, the most recent one first: calls run their programs
    in one order, so the next call will need it last. Then come those used least recently.
    """

    def __init__(self, budget: int, label: str = "", give_back: Callable[[], None] | None = None) -> None:
        self.budget, self.label = budget, label
        self.used, self.peak = 0, 0
        """Bytes in the area: now, and at most so far."""
        self.loads, self.loaded_bytes = 0, 0
        """Programs brought in so far, and their bytes."""
        self._give_back = give_back
        self._programs: list[SwappedExecutable] = []
        self._changed = threading.Condition()
        self._clock = itertools.count(1)
        self._failure: MansardError | None = None

    @property
    def programs(self) -> tuple[SwappedExecutable, ...]:
        """All that take turns."""
        with self._changed:
            return tuple(self._programs)

    def add(self, program: SwappedExecutable) -> None:
        """Let a program take part; raises OutOfMemoryError for one that is larger than the area."""
        if program.size > self.budget:
            raise OutOfMemoryError(
                f"{self.label}: a program of {program.size} bytes does not fit an area of {self.budget}"
            )
        with self._changed:
            self._programs.append(program)

    def prefetch(self, program: SwappedExecutable) -> bool:
        """Bring a program in, if that takes no memory of one that is in use or awaited; says whether it is
        in, or coming. Raises what loading raises."""
        with self._changed:
            self._check()
            if program.state is not _State.OUT:
                program.awaited, program.retired = True, False
                return True
            if not self._make_room(program.size, spare_awaited=True):
                return False
            self._begin(program)
            program.awaited = True
        self._load(program)
        return True

    def acquire(self, program: SwappedExecutable) -> None:
        """Bring a program in and keep it there until `release`; waits for memory of programs in use."""
        with self._changed:
            self._check()
            program.users += 1
            try:
                while program.state is not _State.IN:
                    if program.state is _State.OUT and self._make_room(program.size):
                        break
                    self._changed.wait()
                    self._check()
                else:
                    self._touch(program)
                    return
            except BaseException:
                program.users -= 1
                raise
            self._begin(program)
        try:
            self._load(program)
        except BaseException:
            with self._changed:
                program.users -= 1
            raise

    def release(self, program: SwappedExecutable) -> None:
        """The end of what `acquire` began."""
        with self._changed:
            program.users -= 1
            if program not in self._programs and not program.users:
                self._take_out(program)
            self._changed.notify_all()

    def retire(self, program: SwappedExecutable) -> None:
        """A call is done with a program: its memory is the first that another one gets, unless another call
        awaits it."""
        with self._changed:
            if not program.awaited:
                program.retired = True
                program.used_at = next(self._clock)

    def remove(self, program: SwappedExecutable) -> None:
        """A program takes no part any more; one in use leaves when it is released."""
        with self._changed:
            if program in self._programs:
                self._programs.remove(program)
                if not program.users:
                    self._take_out(program)
                self._changed.notify_all()

    def fail(self, error: MansardError) -> None:
        """The device is lost: whoever waits for memory, and whoever comes later, gets ``error``."""
        with self._changed:
            self._failure = error
            self._changed.notify_all()

    def close(self) -> None:
        """Give the memory back."""
        for program in self.programs:
            self.remove(program)
        give_back, self._give_back = self._give_back, None
        if give_back is not None:
            give_back()

    # Called with the lock ---------------------------------------------------------------------
    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _touch(self, program: SwappedExecutable) -> None:
        program.used_at = next(self._clock)
        program.awaited = program.retired = False

    def _make_room(self, size: int, *, spare_awaited: bool = False) -> bool:
        """Take programs out until ``size`` bytes are free; takes none out where that is impossible."""
        idle = [p for p in self._programs if p.state is _State.IN and not p.users]
        idle = [p for p in idle if not (spare_awaited and p.awaited)]
        if self.used - sum(p.size for p in idle) + size > self.budget:
            return False
        idle.sort(key=lambda p: (not p.retired, p.awaited, -p.used_at if p.retired else p.used_at))
        for program in idle:
            if self.used + size <= self.budget:
                break
            self._take_out(program)
        return True

    def _begin(self, program: SwappedExecutable) -> None:
        program.state = _State.LOADING
        self.used += program.size
        self.peak = max(self.peak, self.used)
        self.loads += 1
        self.loaded_bytes += program.size
        self._touch(program)

    def _take_out(self, program: SwappedExecutable) -> None:
        loaded, program.loaded = program.loaded, None
        if loaded is None:
            return
        program.state, program.awaited, program.retired = _State.OUT, False, False
        self.used -= program.size
        loaded.close()

    # Called without it ------------------------------------------------------------------------
    def _load(self, program: SwappedExecutable) -> None:
        loaded: Executable | None = None
        try:
            loaded = program.bring_in()
        finally:
            with self._changed:
                if loaded is None:
                    program.state = _State.OUT
                    self.used -= program.size
                else:
                    program.state, program.loaded = _State.IN, loaded
                    if program not in self._programs and not program.users:
                        self._take_out(program)
                self._changed.notify_all()


def swapped(executable: Executable) -> SwappedExecutable:
    """The executable of a command that loads or evicts; raises DeviceError for one that is always loaded."""
    if not isinstance(executable, SwappedExecutable):
        raise DeviceError("only programs of an area are loaded and evicted by commands")
    return executable


@contextlib.contextmanager
def loaded_for(command: DispatchCommand) -> Iterator[DispatchCommand]:
    """The command with the executable that runs, in the device's memory until the end of the ``with``
    block."""
    if isinstance(command.executable, SwappedExecutable):
        with command.executable.held() as executable:
            yield dataclasses.replace(command, executable=executable)
    else:
        yield command
