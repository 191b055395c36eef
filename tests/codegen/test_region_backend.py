"""Backends whose toolchain takes regions of named ops: what it refuses, or dies over, runs elsewhere."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from mansard.codegen.kernel_target import KernelTarget
from mansard.codegen.region_backend import OnnxRefusal, OnnxRegionBackend
from mansard.errors import CodegenError, WorkerLostError, WorkerUnavailableError
from mansard.hal.program import Program
from mansard.ir import Constant, GraphBuilder
from mansard.ir.dispatch import is_contraction
from mansard.ir.region import extract
from mansard.regions.named import Elementwise
from mansard.targets.profile import DeviceProfile, LinkProfile, default_profile
from mansard.testing.graphs import F32, matmul, unary

TARGET = KernelTarget("tool:chip")


class Tool(OnnxRegionBackend):
    """A toolchain that refuses types of ONNX nodes, in words of its own, once it sees them."""

    name, region_format, toolchain = "tool", "tool-code", "the tool"

    def __init__(self, refused=(), version="tool 1"):
        super().__init__()
        self.refused, self.compiled, self._version = refused, [], version

    def parse_target(self, text):
        return KernelTarget(text)

    def profile(self, text, device):
        return default_profile("simulated")

    def refuses_op(self, op, graph, target):
        return "it has no cos" if isinstance(op, Elementwise) and op.op == "cos" else None

    @property
    def version(self):
        return self._version

    def compile_onnx(self, model, target):
        nodes = onnx.load_from_string(model).graph.node
        self.compiled.append([node.op_type for node in nodes])
        named = {node.name: f"{node.op_type} is beyond it" for node in nodes if node.op_type in self.refused}
        return OnnxRefusal("it does not take all", named) if named else b"code " + bytes([len(nodes)])


def layers(*names):
    """Layers of a product and a scalar op each."""
    b = GraphBuilder()
    x = b.input("x", (8, 8), F32)
    for number, name in enumerate(names):
        data = Constant.of(np.full((8, 8), number, np.float32), f"w{number}")
        x = unary(b, name, matmul(b, x, b.constant(f"w{number}", data, (8, 8), F32)))
    return b.build([x])


def test_ops_are_left_out_in_the_words_of_the_toolchain(no_cache):
    graph, tool = layers("tanh", "sin", "cos", "tanh"), Tool(["Sin"])
    found = tool.partition(graph, TARGET)
    assert [len(region.ops) for region in found.regions] == [3, 1, 2]
    assert list(found.reasons.values()) == ["it has no cos", "the tool: Sin is beyond it"]
    count = len(tool.compiled)
    for region in found.regions:
        code = Program.decode(tool.compile_region(extract(graph, region.ops, "any name"), TARGET))
        assert code.code.startswith(b"code ")
        assert [tensor.shape for tensor in (*code.inputs, *code.outputs)] == [(8, 8), (8, 8)]
    assert len(tool.compiled) == count, "regions that a partition has compiled are compiled once"


def test_a_region_that_is_compiled_all_the_same_is_an_error(no_cache):
    graph = layers("sin")
    with pytest.raises(CodegenError, match="the tool: it does not take all: the tool: Sin is beyond it"):
        Tool(["Sin"]).compile_region(extract(graph, graph.ops, "region"), TARGET)


def test_a_toolchain_that_dies_over_a_region_does_not_take_it(no_cache):
    class Dying(Tool):
        def compile_onnx(self, model, target):
            if any(node.op_type == "Sin" for node in onnx.load_from_string(model).graph.node):
                raise WorkerLostError("the tool: its process was killed by SIGSEGV (in compile)")
            return super().compile_onnx(model, target)

    graph = layers("tanh", "cos", "sin")
    found = Dying().partition(graph, TARGET)
    (region,) = found.regions
    assert len(region.ops) == 3
    assert sum("SIGSEGV" in reason for reason in found.reasons.values()) == 2
    assert all(op in found.reasons or op in region.ops for op in graph.ops)


def test_a_toolchain_that_is_missing_takes_nothing(no_cache):
    class Missing(Tool):
        @property
        def version(self):
            raise WorkerUnavailableError("the tool is not installed: pip install tool")

    graph = layers("tanh")
    found = Missing().partition(graph, TARGET)
    assert not found.regions
    assert set(found.reasons.values()) == {"the tool is not installed: pip install tool"}
    with pytest.raises(WorkerUnavailableError, match="not installed"):
        Missing().compile_region(extract(graph, graph.ops, "region"), TARGET)


def test_code_is_kept_in_the_cache_for_one_version_of_the_toolchain(tmp_path, monkeypatch):
    monkeypatch.setenv("MANSARD_CACHE_DIR", str(tmp_path))
    graph = layers("tanh")
    tools = [Tool(), Tool(), Tool(version="tool 2")]
    for tool in tools:
        tool.partition(graph, TARGET)
    assert [len(tool.compiled) for tool in tools] == [1, 0, 1]


def test_a_region_costs_its_products_by_their_type_and_its_launch():
    graph, tool = layers("tanh"), Tool()
    profile = default_profile("simulated")
    seconds = tool.estimate_region(graph, TARGET)
    products = 2 * 8 * 8 * 8 / profile.rate("f32")
    assert profile.launch + products < seconds < profile.launch + 2 * products
    assert any(is_contraction(op) for op in graph.ops)


@pytest.fixture
def no_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("MANSARD_CACHE_DIR", str(tmp_path))


def test_a_regions_bytes_are_those_of_its_code():
    graph, tool = layers("tanh"), Tool()
    (region,) = tool.partition(graph, TARGET).regions
    part = extract(graph, region.ops, "region")
    assert tool.region_bytes(part, TARGET) == len(tool.compile_region(part, TARGET))
    assert len(tool.compiled) == 1


@pytest.mark.parametrize(("rows", "worth"), [(64, False), (1 << 16, True)])
def test_a_region_without_a_product_is_taken_where_it_is_worth_its_handoffs(no_cache, rows, worth):
    """By what it costs with the handoffs there and back, beside a CPU: large maps are, small ones are not."""

    class Fast(Tool):
        def profile(self, text, device):
            link = LinkProfile(1e11, 1e-4)
            return DeviceProfile("fast", 1e12, 1e12, 0, {"f32": 1e13}, 1e-5, link, unified=True, vector=1e12)

    b = GraphBuilder()
    graph = b.build([unary(b, "tanh", b.input("x", (rows, 256), F32))])
    found = Fast().partition(graph, TARGET)
    assert bool(found.regions) is worth
    if not worth:
        (reason,) = found.reasons.values()
        assert reason.startswith("it has no product, and takes 210 us with the handoffs to the tool's device")
    # One with a product is offered whatever it costs: placement knows the devices there are.
    assert len(Fast().partition(layers("tanh"), TARGET).regions) == 1
