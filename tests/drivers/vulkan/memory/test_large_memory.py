"""Weights above what one allocation of a device may hold, on a Vulkan device held to a lower limit."""

import mmap

import numpy as np
import pytest
from support.graph_runner import compare, outputs
from support.graphs import A0, F32, binary, maps, matmul, op

from mansard.api import Model
from mansard.artifact.resources import MemoryResources, read_artifact, write_artifact
from mansard.compiler import CompileOptions, compile_graph, targets
from mansard.dtypes import DType
from mansard.errors import OutOfMemoryError
from mansard.hal import MemoryKind
from mansard.ir import Constant, GraphBuilder
from mansard.ir.interpreter.graph import interpret
from mansard.ir.scalar import Arg, Const, Gather, Index
from mansard.placement import PlacementOptions

pytestmark = pytest.mark.vulkan
RNG = np.random.default_rng(17)
LIMIT = 1 << 20


@pytest.fixture
def small_device(monkeypatch):
    """A device that refuses allocations above `LIMIT`, which the compiler is told of."""
    from mansard.drivers.vulkan.driver import VulkanDriver
    from mansard.drivers.vulkan.instance import limits

    monkeypatch.setattr(limits, "max_allocation", lambda snapshot: LIMIT)
    driver = VulkanDriver()
    (info, *_) = driver.devices()
    if info.reasons:
        pytest.skip("no Vulkan 1.3 device")
    monkeypatch.setattr(targets, "_present", lambda name, index: info if name == "vulkan" else None)
    device = driver.open(info)
    yield device
    device.close()


def compiled(graph, device):
    options = CompileOptions(targets=("vulkan",), placement=PlacementOptions(fallback="error"), cache=False)
    compiled = compile_graph(graph, options)
    return Model(
        compiled.plan, MemoryResources(compiled.executables, compiled.weights), devices={"vulkan": device}
    )


def random_array(shape, aligned):
    """Random numbers, if asked for from the start of a page, which a device can import."""
    numbers = RNG.standard_normal(shape).astype(np.float32)
    if not aligned:
        return numbers
    pages = np.frombuffer(mmap.mmap(-1, numbers.nbytes), np.float32).reshape(shape)
    pages[:] = numbers
    return pages


def weight(b, shape, name, aligned=False):
    return b.constant(name, Constant.of(random_array(shape, aligned), name), shape, F32)


def language_model(vocabulary, width, aligned=False):
    """A tied embedding and head, each several allocations long, around a layer that is larger than one."""
    b = GraphBuilder()
    ids = b.input("ids", (3,), DType.I64)
    table, layer = (
        weight(b, (vocabulary, width), "table", aligned),
        weight(b, (width, 2048), "layer", aligned),
    )
    back = weight(b, (2048, width), "back", aligned)
    x = b.generic([ids, table], [maps(0), None], (3, width), Gather(1, (Arg(0, DType.I64), Index(1)), F32))
    h = b.generic([matmul(b, x, layer)], [maps(0, 1)], (3, 2048), op("max", A0, Const(0.0, F32)))
    y = binary(b, "add", matmul(b, h, back), x)
    return b.build([matmul(b, y, table, transposed=True)])


def test_a_model_runs_on_a_device_with_small_allocations(small_device):
    graph = language_model(5000, 256)
    inputs = [np.array([1, 4999, 2600])]
    with compiled(graph, small_device) as model:
        sizes = [row.bytes for row in model.memory().rows if row.what == "weights"]
        compare(outputs(model, inputs), interpret(graph, inputs), rtol=1e-4, atol=1e-4)
    assert sizes and sum(sizes) >= 5000 * 256 * 4


def test_the_device_holds_to_its_limit(small_device):
    with pytest.raises(OutOfMemoryError, match=f"{LIMIT + 16}.*{LIMIT}"):
        small_device.allocate(LIMIT + 16, MemoryKind.DEVICE)
    small_device.allocate(LIMIT, MemoryKind.DEVICE).close()


@pytest.mark.parametrize("aligned", [False, True])
def test_a_model_compiled_for_larger_allocations_is_refused(small_device, monkeypatch, aligned):
    monkeypatch.setattr(targets, "_present", lambda name, index: None)
    graph = language_model(5000, 256, aligned)
    with pytest.raises(OutOfMemoryError, match=r"weight.*bytes.*compile it for this device"):
        compiled(graph, small_device)(np.array([1, 2, 3]))


def test_weights_of_a_file_are_used_in_place_in_several_pieces(small_device, tmp_path):
    if not (small_device.capabilities.import_host and small_device.capabilities.unified_memory):
        pytest.skip("the device does not use the host's memory in place")
    graph = language_model(1500, 256)
    options = CompileOptions(targets=("vulkan",), placement=PlacementOptions(fallback="error"), cache=False)
    compiled = compile_graph(graph, options)
    path = tmp_path / "model.mansard"
    write_artifact(path, compiled.plan, MemoryResources(compiled.executables, compiled.weights))
    plan, resources = read_artifact(path)
    inputs = [np.array([1, 1499, 700])]
    with Model(plan, resources, devices={"vulkan": small_device}) as model:
        compare(outputs(model, inputs), interpret(graph, inputs), rtol=1e-4, atol=1e-4)
        pieces = model.bind()._environment.constants.rows
    assert len(pieces) > 1 and all(piece.kind == "mapped" for piece in pieces)


def test_descriptors_name_less_than_a_buffer_holds():
    (plain,) = targets.resolve_targets(["vulkan:1.3"], PlacementOptions(fallback="error"))
    (bound,) = targets.resolve_targets(["vulkan:1.3+abi=descriptors"], PlacementOptions(fallback="error"))
    assert (plain.largest_buffer, bound.largest_buffer) == (1 << 30, 1 << 27)
    sizes = [
        targets.resolve_targets([f"vulkan:{n}"], PlacementOptions(fallback="error"))[0]
        for n in ("h200", "rdna3")
    ]
    assert [target.largest_buffer for target in sizes] == [1 << 40, 1 << 30]


def test_an_activation_larger_than_a_buffer_is_named(small_device):
    b = GraphBuilder()
    x, y = b.input("x", (600,), F32), b.input("y", (600,), F32)
    outer = b.generic([x, y], [maps(0), maps(1)], (600, 600), op("mul", A0, Arg(1, F32)), name="outer")
    graph = b.build([outer])
    with pytest.raises(OutOfMemoryError, match=rf"outer.* has 1440000 bytes.*holds {LIMIT}"):
        compiled(graph, small_device)(np.ones(600, np.float32), np.ones(600, np.float32))
