"""A device whose dispatches are calls of functions in a worker process: a base class for plug-ins.

For vendors' packages that crash, hang or clash with Mansard's own. The worker's module has two functions:
``load(code)``, whose result stays in the process, and ``run(loaded, inputs, params)``, which returns the
outputs. Arrays cross in shared memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType

import numpy as np

from mansard.errors import ExecutionError, InputError, TargetMismatchError, WorkerError
from mansard.hal.commands import DispatchCommand
from mansard.hal.device import DeviceInfo, Driver
from mansard.hal.executable import Executable, ExecutableSpec
from mansard.hal.program import Program
from mansard.hal.threaded import Bytes
from mansard.hal.vendor import DEFAULT_LIMIT, VendorDevice
from mansard.workers import Environment, Remote, Worker

START_SECONDS = 60.0


class WorkerExecutable(Executable):
    """A program in the worker, which loads it with its first run, and anew where it had to be replaced."""

    def __init__(self, spec: ExecutableSpec, program: Program, remote: Remote) -> None:
        self.spec, self.program, self.remote = spec, program, remote
        self.entries = MappingProxyType({entry.name: entry for entry in spec.entries})

    def close(self) -> None:
        """Let the worker drop the program."""
        self.remote.close()


class WorkerDevice(VendorDevice):
    """Runs programs (`mansard.hal.program.Program`) of one format in a worker of its own.

    A worker that dies, or takes longer than ``limit`` seconds over a dispatch, fails the submission with an
    ExecutionError that says so; the next one starts another. ``module`` is where ``load`` and ``run`` are.
    """

    def __init__(
        self,
        info: DeviceInfo,
        module: str,
        environment: Environment,
        *,
        code_format: str,
        limit: float = DEFAULT_LIMIT,
    ) -> None:
        # The worker keeps the limit; that of the base class is for a worker that cannot be ended.
        super().__init__(info, formats=(code_format,), limit=2 * limit + START_SECONDS)
        self._worker = Worker(module, environment, name=info.id, seconds=limit, start_seconds=START_SECONDS)

    def code(self, program: Program) -> bytes:
        """What the worker's ``load`` gets of a program; raises ValueError for one of another kind."""
        return program.code

    def load(self, spec: ExecutableSpec) -> Executable:
        """Programs of the device's format; else TargetMismatchError."""
        self.check_format(spec)
        try:
            program = Program.decode(spec.code)
            code = self.code(program)
        except ValueError as error:
            raise TargetMismatchError(f"{self.info.id} cannot load a program: {error}") from error
        return WorkerExecutable(spec, program, self._worker.make("load", code))

    def bring_in(self, spec: ExecutableSpec) -> Executable:
        """Load a program now, instead of with its first run."""
        executable = self.load(spec)
        assert isinstance(executable, WorkerExecutable)
        try:
            executable.remote.make()
        except WorkerError as error:
            raise ExecutionError(str(error)) from error
        return executable

    def run(self, command: DispatchCommand, memories: Sequence[Bytes]) -> None:
        """Run a program."""
        executable = command.executable
        assert isinstance(executable, WorkerExecutable)
        program = executable.program
        arrays = program.arrays(memories, command.params)
        count = len(program.inputs)
        try:
            results = executable.remote.call("run", arrays[:count], list(command.params))
        except WorkerError as error:
            raise ExecutionError(str(error)) from error
        for into, result in zip(arrays[count:], results, strict=True):
            np.copyto(into, np.asarray(result).reshape(into.shape), casting="no")

    def close(self) -> None:
        """Fail what waits, wait for the call that runs as long as it may take, end the worker."""
        super().close()
        self._worker.close()


class WorkerDriver(Driver):
    """A driver of a `WorkerDevice`, whose only setting is the limit of a dispatch."""

    def __init__(self) -> None:
        self.limit: float = DEFAULT_LIMIT

    def configure(self, **settings: object) -> None:
        """``limit`` in seconds of a region's run."""
        for name, value in settings.items():
            if name != "limit" or not isinstance(value, (int, float)) or value <= 0:
                raise InputError(f"{self.name} has no setting {name}={value!r}; it has limit, in seconds")
            self.limit = float(value)
