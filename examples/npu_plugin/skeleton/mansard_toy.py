"""The smallest plug-in: a device ``toy`` that has one function, x -> -x on f32, and refuses all else."""

from mansard.codegen.backend import Backend, CompiledDispatch
from mansard.codegen.kernel_target import KernelTarget
from mansard.dtypes import DType
from mansard.errors import TargetMismatchError
from mansard.hal import DeviceInfo, Driver, EntryPoint, Executable, ExecutableSpec
from mansard.hal.threaded import ThreadedDevice
from mansard.ir.scalar import Apply, Arg
from mansard.ir.types import IndexMap

NEGATE = Apply("neg", (Arg(0, DType.F32),), DType.F32)


class Loaded(Executable):
    def __init__(self, spec):
        self.spec, self.entries = spec, {entry.name: entry for entry in spec.entries}

    def close(self):
        pass


class ToyDevice(ThreadedDevice):
    def load(self, spec):
        if spec.format != "toy" or spec.requires:
            raise TargetMismatchError(f"toy loads 'toy', not {spec.format!r}")
        return Loaded(spec)

    def run(self, command, memories):
        x, y = (memory[: 4 * command.params[0]].view("f4") for memory in memories)
        y[:] = -x


class ToyDriver(Driver):
    name = "toy"

    def devices(self):
        return (DeviceInfo("toy", 0, "toy device", "toy", kind="simulated"),)

    def open(self, info):
        return ToyDevice(info, formats=("toy",))


class ToyBackend(Backend):
    name, late_binding = "toy", True  # as every ThreadedDevice

    def parse_target(self, text):
        return KernelTarget("toy")

    def refuses(self, dispatch, target):
        op, *more = dispatch.ops
        fits = getattr(op, "body", None) == NEGATE and op.maps == (IndexMap.identity(op.rank),)
        return None if fits and not more else "it can only negate"

    def compile_dispatch(self, dispatch, target, name, parameters=None):
        spec = ExecutableSpec("toy", "toy", b"negate", (EntryPoint(name, 2, 1),))
        return CompiledDispatch(spec, (dispatch.outputs[0].type.elements,))


DRIVER, BACKEND = ToyDriver(), ToyBackend()
