"""Kernels that take descriptors: alone, beside addresses, pushed or in sets, within the device's limits."""

from __future__ import annotations

import dataclasses
import gc
import subprocess
from collections.abc import Iterator

import numpy as np
import pytest
from support import graph_runner, vulkan_support
from support.graphs import A0, F32, binary, layer_norm, maps, matmul, op, softmax

from mansard.api import Model
from mansard.artifact.resources import MemoryResources
from mansard.codegen.kernel import KernelBuilder
from mansard.compiler import CompiledModel, CompileOptions, compile_graph
from mansard.drivers.vulkan.compiler import BACKEND
from mansard.drivers.vulkan.device import VulkanDevice
from mansard.drivers.vulkan.instance.device_setup import make_setup
from mansard.drivers.vulkan.instance.restrict import disable
from mansard.drivers.vulkan.shaders.abi import modules_of
from mansard.dtypes import DType
from mansard.errors import ArtifactError, CodegenError, CompileError, DeviceError, TargetMismatchError
from mansard.hal import BufferRef, DispatchCommand, EntryPoint, MemoryKind
from mansard.hal.executable import ExecutableSpec
from mansard.ir import Graph, GraphBuilder
from mansard.ir.interpreter.graph import interpret
from mansard.ir.scalar import Apply, Arg, Cast, Const
from mansard.placement import PlacementOptions
from mansard.plan.plan import ExecutableRef

pytestmark = pytest.mark.vulkan
RNG = np.random.default_rng(3)


def matmul_with_epilogue() -> tuple[Graph, list[np.ndarray]]:
    b = GraphBuilder()
    x, w, bias = b.input("x", (33, 40), F32), b.input("w", (40, 50), F32), b.input("b", (50,), F32)
    y = b.generic(
        [binary(b, "add", matmul(b, x, w), bias)], [maps(0, 1)], (33, 50), op("max", A0, Const(0.0, F32))
    )
    return b.build([y]), [RNG.standard_normal(s).astype(np.float32) for s in ((33, 40), (40, 50), (50,))]


def norm_and_softmax() -> tuple[Graph, list[np.ndarray]]:
    b = GraphBuilder()
    x = b.input("x", (7, 100), F32)
    scale, shift = b.input("s", (100,), F32), b.input("t", (100,), F32)
    y = softmax(b, layer_norm(b, x, scale, shift))
    return b.build([y]), [RNG.standard_normal(s).astype(np.float32) for s in ((7, 100), (100,), (100,))]


def narrow_types() -> tuple[Graph, list[np.ndarray]]:
    """f16 and i8 in, bool and f16 out."""
    b = GraphBuilder()
    h, i = b.input("h", (5, 24), DType.F16), b.input("i", (5, 24), DType.I8)
    total = op("add", Cast(Arg(0, DType.F16), F32), Cast(Arg(1, DType.I8), F32))
    y = b.generic([h, i], [maps(0, 1)] * 2, (5, 24), Cast(total, DType.F16))
    z = b.generic([h, i], [maps(0, 1)] * 2, (5, 24), Apply("lt", (total, Const(0.5, F32)), DType.BOOL))
    half = RNG.standard_normal((5, 24)).astype(np.float16)
    return b.build([y, z]), [half, RNG.integers(-3, 3, (5, 24)).astype(np.int8)]


CASES = {"matmul": matmul_with_epilogue, "rows": norm_and_softmax, "narrow": narrow_types}


def compiled(graph: Graph, abi: str) -> CompiledModel:
    options = CompileOptions((f"vulkan+abi={abi}",), PlacementOptions(fallback="error"), cache=False)
    return compile_graph(graph, options)


def open_without(*names: str, **limits: int) -> VulkanDevice:
    """The device without some of its features and with other limits."""
    driver, info = vulkan_support.validating_driver(), vulkan_support.usable_device()
    candidate = driver._candidates[info.index]
    snapshot = disable(candidate.snapshot, names)
    setup = make_setup(snapshot)
    setup = dataclasses.replace(setup, limits={**setup.limits, **limits})
    assert driver._instance is not None
    return VulkanDevice(
        driver._instance, dataclasses.replace(candidate, snapshot=snapshot, setup=setup), info
    )


@pytest.fixture(params=[(), ("VK_KHR_push_descriptor",)], ids=["pushed", "sets"])
def device(request: pytest.FixtureRequest) -> Iterator[VulkanDevice]:
    """A device without addresses, and one without push descriptors either."""
    opened = open_without("buffer_device_address", *request.param)
    assert opened.capabilities.formats == ("spirv-all", "spirv-descriptors")
    yield opened
    opened.close()
    gc.collect()
    vulkan_support.assert_no_validation_messages()


def check(
    model: CompiledModel, device: VulkanDevice, inputs: list[np.ndarray], expected: list[np.ndarray]
) -> None:
    resources = MemoryResources(model.executables, model.weights)
    with Model(model.plan, resources, {"vulkan": device}) as bound:
        for _ in range(2):
            results = bound(*inputs)
            graph_runner.compare(
                list(results) if isinstance(results, tuple) else [results], expected, 2e-3, 2e-3
            )


@pytest.mark.parametrize("abi", ["descriptors", "all"])
@pytest.mark.parametrize("case", CASES)
def test_graphs_without_addresses(device: VulkanDevice, case: str, abi: str) -> None:
    graph, inputs = CASES[case]()
    check(compiled(graph, abi), device, inputs, interpret(graph, inputs))


def test_a_device_with_addresses_takes_them() -> None:
    graph, inputs = matmul_with_epilogue()
    model = compiled(graph, "all")
    with_addresses, without = open_without(), open_without("buffer_device_address")
    for device, descriptors in ((with_addresses, False), (without, True)):
        (ref,) = {e.entry: e for d in model.plan.devices for e in d.executables}.values()
        entry = entry_of(ref)
        spec = ExecutableSpec(ref.format, ref.target, model.executables[ref.entry], (entry,), ref.requires)
        loaded = device.load(spec)
        assert [p.descriptors for p in loaded.pipelines.values()] == [descriptors]
        loaded.close()
        check(model, device, inputs, interpret(graph, inputs))
        device.close()
    vulkan_support.assert_no_validation_messages()


def entry_of(ref: ExecutableRef) -> EntryPoint:
    ((name, bindings, params, workgroup, offset),) = ref.kernels
    return EntryPoint(name, bindings, params, workgroup, offset)


@pytest.mark.parametrize("case", CASES)
def test_both_modules_are_valid(case: str) -> None:
    if not vulkan_support.has_spirv_val():
        pytest.skip("spirv-val is not installed")
    graph, _ = CASES[case]()
    model = compiled(graph, "all")
    for ref in (e for d in model.plan.devices for e in d.executables):
        modules = modules_of(
            ExecutableSpec(ref.format, ref.target, model.executables[ref.entry], (), ref.requires)
        )
        assert [module.abi for module in modules] == ["bda", "descriptors"]
        assert "int64" in modules[0].requires
        assert "int64" not in modules[1].requires
        for module in modules:
            command = ["spirv-val", "--target-env", "vulkan1.3", "-"]
            checked = subprocess.run(command, input=module.code, capture_output=True, check=False)
            assert checked.returncode == 0, checked.stderr.decode()


def test_kernels_with_addresses_need_a_device_that_has_them(device: VulkanDevice) -> None:
    graph, _ = matmul_with_epilogue()
    model = compiled(graph, "bda")
    with pytest.raises(TargetMismatchError, match=r"'spirv(-body)?'; the device loads spirv-all, spirv-desc"):
        Model(model.plan, MemoryResources(model.executables, model.weights), {"vulkan": device}).bind()


def add_one(params: int = 1) -> ExecutableSpec:
    b = KernelBuilder("add_one", [(F32, False), (F32, True)], params, workgroup=(64, 1, 1))
    with b.for_(0, b.param(params - 1), 1) as loop:
        b.store(
            b.bindings[1], loop.index, b.binary("add", b.load(b.bindings[0], loop.index), b.const(1.0, F32))
        )
    return BACKEND.compile_kernel(b.build(), BACKEND.parse_target("vulkan:1.3+abi=descriptors"))


def test_ranges_are_those_a_descriptor_can_name() -> None:
    device = open_without("buffer_device_address", storage_range=4096, storage_alignment=64)
    loaded = device.load(add_one())
    source, target = (device.allocate(8192, MemoryKind.SHARED) for _ in range(2))
    source.view().view(np.float32)[:] = np.arange(2048)

    def dispatch(offset: int, size: int | None) -> DispatchCommand:
        refs = BufferRef(source, offset, size), BufferRef(target, offset, size)
        return DispatchCommand(loaded, "add_one", refs, (512,), (1, 1, 1))

    vulkan_support.run(device, dispatch(4096, 2048))
    assert np.array_equal(target.view().view(np.float32)[1024:1536], np.arange(1024, 1536) + 1)
    with pytest.raises(
        DeviceError,
        match=r"buffer 0: 8192 bytes exceed the 4096 .*maxStorageBufferRange.*--vulkan-dispatch-abi",
    ):
        device.record([dispatch(0, None)])
    with pytest.raises(DeviceError, match="offset 32 is no multiple of 64"):
        device.record([dispatch(32, 2048)])
    device.close()
    vulkan_support.assert_no_validation_messages()


def test_a_kernel_with_more_buffers_than_a_device_binds() -> None:
    device = open_without("buffer_device_address", storage_buffers=1)
    with pytest.raises(TargetMismatchError, match="needs storage_buffers>=2, the device has 1"):
        device.load(add_one())
    device.close()


def test_parameters_beyond_push_constants() -> None:
    assert add_one(16).format == "spirv-descriptors"
    with pytest.raises(CodegenError, match="17 parameters; beside descriptors there is room for 16"):
        add_one(17)


def test_a_broken_container() -> None:
    for code in (b"no json\n", b'[{"abi": "bda", "bytes": 3, "requires": []}]\nlonger'):
        with pytest.raises(ArtifactError, match="spirv-all"):
            modules_of(ExecutableSpec("spirv-all", "vulkan:1.3", code, ()))


def test_unknown_abi() -> None:
    with pytest.raises(CompileError, match="known: bda, descriptors, all"):
        compiled(matmul_with_epilogue()[0], "push")
