"""The smallest plug-in for a toolchain that takes whole regions as ONNX models.

The device ``toyregions`` has no toolchain: code is the model, and ONNX's reference evaluator runs it.
"""

from onnx import load_from_string
from onnx.reference import ReferenceEvaluator

from mansard.codegen.kernel_target import KernelTarget
from mansard.codegen.region_backend import OnnxRefusal, OnnxRegionBackend
from mansard.errors import TargetMismatchError
from mansard.hal import DeviceInfo, Driver, Executable
from mansard.hal.program import Program
from mansard.hal.vendor import VendorDevice
from mansard.regions.named import Elementwise


class Loaded(Executable):
    def __init__(self, spec):
        self.spec, self.entries = spec, {entry.name: entry for entry in spec.entries}
        self.program = Program.decode(spec.code)
        self.model = ReferenceEvaluator(load_from_string(self.program.code))

    def close(self):
        pass


class ToyDevice(VendorDevice):
    def load(self, spec):
        if spec.format != "toy-onnx" or spec.requires:
            raise TargetMismatchError(f"toyregions loads 'toy-onnx', not {spec.format!r}")
        return Loaded(spec)

    def run(self, command, memories):
        program = command.executable.program
        arrays = program.arrays(memories, command.params)
        count = len(program.inputs)
        inputs = {tensor.name: array for tensor, array in zip(program.inputs, arrays[:count], strict=True)}
        results = command.executable.model.run([tensor.name for tensor in program.outputs], inputs)
        for array, result in zip(arrays[count:], results, strict=True):
            array[...] = result


class ToyDriver(Driver):
    name = "toyregions"

    def devices(self):
        return (DeviceInfo("toyregions", 0, "toy of regions", "toyregions", kind="simulated"),)

    def open(self, info):
        return ToyDevice(info, formats=("toy-onnx",), limit=10.0)


class ToyBackend(OnnxRegionBackend):
    name, region_format, toolchain, version = "toyregions", "toy-onnx", "the toy's toolchain", "toy 1"

    def parse_target(self, text):
        return KernelTarget("toyregions")

    def refuses_op(self, op, graph, target):
        return "it has no sine" if isinstance(op, Elementwise) and op.op == "sin" else None

    def compile_onnx(self, model, target):
        # A real toolchain compiles here, in a process of its own (mansard.workers.Worker).
        nodes = load_from_string(model).graph.node
        named = {node.name: "it has no cosine" for node in nodes if node.op_type == "Cos"}
        return OnnxRefusal("it refuses ops", named) if named else model


DRIVER, BACKEND = ToyDriver(), ToyBackend()
