"""Targets, the compile-time linker, and the two backends as a whole."""

import struct
import subprocess
import sys

import numpy as np
import pytest
from support.kernels.runner import VULKAN_TARGET, Image, compile_vulkan, validate

from mansard.codegen.kernel import KernelBuilder
from mansard.codegen.llvm import link, module
from mansard.codegen.llvm import target as cpu_target
from mansard.codegen.math import apply
from mansard.drivers.cpu.compiler import BACKEND as CPU
from mansard.drivers.vulkan.compiler import BACKEND as VULKAN
from mansard.dtypes import DType
from mansard.errors import CodegenError

F32, F64, I32 = DType.F32, DType.F64, DType.I32
HOST = CPU.parse_target("cpu")


def kernel(name="double", op="exp", lanes=4, dtype=F32, workgroup=(1, 1, 1)):
    b = KernelBuilder(name, [(dtype, False), (dtype, True)], 1, workgroup=workgroup)
    with b.for_(0, b.param(0), lanes) as loop:
        b.store(b.bindings[1], loop.index, apply(b, op, [b.load(b.bindings[0], loop.index, lanes)]))
    return b.build()


# CPU targets ------------------------------------------------------------------------------------
def test_the_bare_name_is_this_machine():
    target = CPU.parse_target("cpu")
    assert target == CPU.parse_target("cpu:host") == CPU.parse_target(target.name)
    assert not target.is_gpu and target.vector_bits in (128, 256, 512)


@pytest.mark.parametrize(
    ("text", "bits", "present", "absent"),
    [
        ("cpu:x86-64", 128, "sse2", "sse4.1"),
        ("cpu:x86-64-v2", 128, "sse4.2", "avx"),
        ("cpu:x86-64-v3", 256, "fma", "avx512f"),
        ("cpu:x86-64-v4", 512, "avx512bw", "avx512vnni"),
        ("cpu:skylake-avx512", 512, "avx512dq", "avx512vnni"),
        ("cpu:znver4+avx512fp16", 512, "avx512fp16", "avxvnni"),
        ("cpu:x86_64+avx2,+fma", 256, "sse4.2", "f16c"),
        ("cpu:x86-64-v4,-avx512f", 256, "avx2", "avx512bw"),
        ("cpu:aarch64", 128, "neon", "fullfp16"),
        ("cpu:neoverse-n1", 128, "dotprod", "sve"),
        ("cpu:cortex-a55", 128, "dotprod", "i8mm"),
        ("cpu:apple-m2", 128, "i8mm", "sve"),
        ("cpu:neoverse-v2+rdm", 128, "sve2", "v"),
        ("cpu:rv64gc", 64, "d", "v"),
        ("cpu:rv64gcv", 128, "zvl128b", "zvl256b"),
        ("cpu:spacemit-x60", 256, "zvfh", "zvl512b"),
        ("cpu:sifive-x280", 512, "zvl512b", "zvfbfmin"),
        ("cpu:spacemit-x60,-zvfhmin", 256, "zfh", "zvfh"),
        ("cpu:spacemit-x60,-v", 64, "zfh", "zvl128b"),
    ],
)
def test_targets_name_their_features(text, bits, present, absent):
    target = CPU.parse_target(text)
    assert target.vector_bits == bits
    assert present in target.features and absent not in target.features
    assert CPU.parse_target(target.name) == target
    assert target.lanes(F32) == bits // 32


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gpu", "write cpu or cpu:NAME"),
        ("cpu:pentium", "unknown CPU 'pentium'; known: host"),
        ("cpu:cortex-a67", "unknown CPU 'cortex-a67'; near it: .*cortex-a76"),
        ("cpu:avx2", r"'avx2' is a feature .* write cpu:x86_64\+avx2"),
        ("cpu:x86_64-pc-windows-msvc", "Linux only so far, not for Windows or macOS"),
        ("cpu:aarch64-apple-darwin", "Linux only so far, not for Windows or macOS"),
        ("cpu:x86-64-v3+sse9", "unknown x86_64 feature 'sse9'; known: amx-bf16, amx-int8, amx-tile, avx"),
        ("cpu:x86-64-v3,avx2", r"write \+feature or ,-feature"),
        ("cpu:aarch64+avx2", "unknown aarch64 feature"),
    ],
)
def test_wrong_targets_say_what_is_known(text, message):
    with pytest.raises(CodegenError, match=message):
        CPU.parse_target(text)


def test_executables_name_architecture_features_and_requirements():
    (spec,) = CPU.compile([kernel()], CPU.parse_target("cpu:haswell"))
    assert spec.format == "cpu-image" and spec.target.startswith("cpu:x86_64+avx,+avx2,")
    assert {"avx2", "fma", "f16c", "sse2"} <= set(spec.requires)
    assert set(spec.requires) == CPU.parse_target(spec.target).features


# Images -----------------------------------------------------------------------------------------
def test_kernels_share_images_and_keep_their_names():
    ops = ["exp", "tanh", "log", "sqrt", "neg", "abs", "floor", "erf", "sin"] * 2
    kernels = [kernel(f"k{i}", op) for i, op in enumerate(ops)]
    specs = CPU.compile(kernels, HOST)
    assert [e.name for s in specs for e in s.entries] == [k.name for k in kernels]
    assert 1 < len(specs) < len(kernels)
    x = np.linspace(0.5, 2, 16, dtype=np.float32)
    images = {e.name: Image(spec) for spec in specs for e in spec.entries}
    for name, op in zip((k.name for k in kernels), ops, strict=True):
        y = np.zeros_like(x)
        images[name].run(name, [x, y], [x.size])
        expected = {"erf": [0.5204999, 0.9953223], "neg": -x[[0, -1]]}.get(op)
        expected = getattr(np, op)(x[[0, -1]]) if expected is None else expected
        np.testing.assert_allclose(y[[0, -1]], expected, rtol=1e-6)


def test_an_image_is_position_independent_and_whole_pages():
    (spec,) = CPU.compile([kernel(op="sin")], HOST)
    assert len(spec.code) % 4096 == 0
    x = np.linspace(-3, 3, 16, dtype=np.float32)
    results = []
    for _ in range(2):  # two mappings, at two addresses
        y = np.zeros_like(x)
        Image(spec).run("double", [x, y], [x.size])
        results.append(y)
    np.testing.assert_array_equal(*results)
    np.testing.assert_allclose(results[0], np.sin(x), rtol=1e-6)


def test_a_part_of_the_grid_is_run():
    b = KernelBuilder("fill", [(I32, True)], 0)
    x, y = b.workgroup_id(0), b.workgroup_id(1)
    b.store(b.bindings[0], b.add(b.mul(y, b.idx(4)), x), b.const(1, I32))
    (spec,) = CPU.compile([b.build()], HOST)
    out = np.zeros(12, np.int32)
    Image(spec).run("fill", [out], [], grid=(4, 3, 1), span=(3, 9))
    assert out.tolist() == [0] * 3 + [1] * 6 + [0] * 3


def test_compilation_is_reproducible():
    first, second = (CPU.compile([kernel(op="tanh")], HOST)[0].code for _ in range(2))
    assert first == second


def _object(ir, text="cpu"):
    target = cpu_target.parse(text)
    return module.compile_object(f'target triple = "{target.triple}"\n{ir}', target)


def test_calls_to_libraries_are_refused_by_name():
    ir = "declare float @sinf(float)\n"
    ir += "define float @f(float %x) {\n %y = call float @sinf(float %x)\n ret float %y\n}"
    with pytest.raises(CodegenError, match="functions it does not have: sinf"):
        link.link(_object(ir))


def test_writable_data_is_refused():
    ir = "@state = global i32 7\ndefine ptr @f() {\n ret ptr @state\n}"
    with pytest.raises(CodegenError, match=r"writable section \.data"):
        link.link(_object(ir))


def test_invalid_ir_is_reported():
    with pytest.raises(CodegenError, match="LLVM rejects"):
        _object("define i32 @f() {\n ret float 0.0\n}")


@pytest.mark.parametrize(
    "text",
    [
        "cpu:x86-64",
        pytest.param("cpu:x86-64-v3", marks=pytest.mark.slow),  # between the other two
        "cpu:x86-64-v4",
        pytest.param("cpu:aarch64", marks=pytest.mark.slow),  # with SVE below
        "cpu:neoverse-v1",
        pytest.param("cpu:rv64gc", marks=pytest.mark.slow),  # with vectors below
        "cpu:spacemit-x60",
    ],
)
def test_every_expansion_links_without_libraries(text):
    target = CPU.parse_target(text)
    for dtype in (F32, F64):
        ops = ["exp", "expm1", "log", "log1p", "tanh", "erf", "sin", "atan", "asin", "round", "floor", "sqrt"]
        for lanes in (1, target.lanes(dtype)):
            b = KernelBuilder("all", [(dtype, False), *((dtype, True) for _ in ops)], 0)
            x = b.load(b.bindings[0], b.idx(0), lanes)
            for y, op in zip(b.bindings[1:], ops, strict=True):
                b.store(y, b.idx(0), apply(b, op, [x]))
            (spec,) = CPU.compile([b.build()], target)
            assert [entry.name for entry in spec.entries] == ["all"]


@pytest.mark.parametrize(
    "text",
    [
        "cpu:x86-64",
        pytest.param("cpu:x86-64-v3", marks=pytest.mark.slow),  # between the other two
        "cpu:x86-64-v4",
        "cpu:aarch64",
        "cpu:rv64gc",
        pytest.param("cpu:rv64gcv", marks=pytest.mark.slow),  # the next has its vectors, and more
        "cpu:spacemit-x60",
    ],
)
def test_every_conversion_links_without_libraries(text):
    types = [d for d in DType if d.bits >= 8]
    kernels = []
    for source in types:
        for lanes in (1, 16):
            b = KernelBuilder(f"{source.value}{lanes}", [(source, False), *((t, True) for t in types)], 0)
            x = b.load(b.bindings[0], b.idx(0), lanes)
            for i, t in enumerate(types):
                b.store(b.bindings[1 + i], b.idx(0), b.cast(x, t))
            kernels.append(b.build())
    assert CPU.compile(kernels, CPU.parse_target(text))


# Encodings from the Arm architecture reference manual (A64).
ADRP_X0, ADD_X0_X0, LDR_Q0_X0, BL = 0x90000000, 0x91000000, 0x3DC00000, 0x94000000


@pytest.mark.parametrize(
    ("kind", "code", "place", "target", "expected"),
    [
        (275, ADRP_X0, 0x0, 0x1000, 0xB0000000),  # adrp x0, +1 page
        (275, ADRP_X0, 0xFFC, 0x5008, 0xB0000020),  # adrp x0, +5 pages
        (275, ADRP_X0, 0x3000, 0x0, 0xB0FFFFE0),  # adrp x0, -3 pages
        (277, ADD_X0_X0, 0x0, 0x2010, 0x91004000),  # add x0, x0, #0x10
        (299, LDR_Q0_X0, 0x0, 0x1020, 0x3DC00800),  # ldr q0, [x0, #0x20]
        (283, BL, 0x10, 0x8, 0x97FFFFFE),  # bl -8
    ],
)
def test_aarch64_instructions_are_patched(kind, code, place, target, expected):
    blob = bytearray(0x6000)
    struct.pack_into("<I", blob, place, code)
    link._PATCHES["EM_AARCH64"][kind](blob, place, target, target - place)
    assert struct.unpack_from("<I", blob, place)[0] == expected


def test_a_misaligned_aarch64_load_is_refused():
    with pytest.raises(CodegenError, match="not a multiple of 16"):
        link._PATCHES["EM_AARCH64"][299](bytearray(8), 0, 8, 8)


# Refusals ---------------------------------------------------------------------------------------
def test_kernels_a_cpu_cannot_run_are_refused():
    with pytest.raises(CodegenError, match=r"workgroup is \(1, 1, 1\)"):
        CPU.compile([kernel(workgroup=(64, 1, 1))], HOST)
    with pytest.raises(CodegenError, match=r"not unique: .*double"):
        CPU.compile([kernel(), kernel()], HOST)
    b = KernelBuilder("big", [], 0)
    b.shared(F32, 1 << 20)
    with pytest.raises(CodegenError, match="bytes of shared memory"):
        CPU.compile([b.build()], HOST)


def test_vulkan_targets():
    target = VULKAN.parse_target("vulkan")
    assert target.is_gpu and target.index is I32 and target == VULKAN.parse_target("vulkan:1.3")
    wide = VULKAN.parse_target("vulkan:1.3+float64+workgroup=512")
    assert wide.workgroup_invocations == 512 and "float64" in wide.features
    assert VULKAN.parse_target(wide.name) == wide
    with pytest.raises(CodegenError, match=r"known: vulkan:1\.3"):
        VULKAN.parse_target("vulkan:2.0")
    with pytest.raises(CodegenError, match=r"unknown feature 'float128'.*known: .*float16"):
        VULKAN.parse_target("vulkan:1.3+float128")


def test_what_a_target_lacks_is_named():
    with pytest.raises(CodegenError, match=r"'double' needs float64, which vulkan:1\.3 lacks"):
        VULKAN.compile([kernel(dtype=F64)], VULKAN.parse_target("vulkan"))
    with pytest.raises(CodegenError, match=r"256 invocations in a workgroup \(limit 128\)"):
        VULKAN.compile([kernel(workgroup=(256, 1, 1))], VULKAN.parse_target("vulkan"))
    b = KernelBuilder("big", [(F32, True)], 0)
    shared = b.shared(F32, 1 << 13)
    b.store(b.bindings[0], b.idx(0), b.load(shared, b.idx(0)))
    with pytest.raises(CodegenError, match="32768 bytes of shared memory"):
        VULKAN.compile([b.build()], VULKAN.parse_target("vulkan"))
    with pytest.raises(CodegenError, match="more lanes than a SPIR-V vector"):
        compile_vulkan(kernel(lanes=8))


def test_requirements_are_only_what_is_used():
    b = KernelBuilder("sizes", [(DType.F16, False), (DType.BOOL, True)], 0, workgroup=(32, 1, 1), index=I32)
    x = b.cast(b.load(b.bindings[0], b.local_id(0)), F32)
    b.store(b.bindings[1], b.local_id(0), b.compare("gt", x, b.const(0.0, F32)))
    plain = VULKAN.parse_target("vulkan:1.3")
    (spec,) = VULKAN.compile([b.build()], plain)
    assert set(spec.requires) == {"int64", "storage16", "storage8", "workgroup_invocations>=32"}
    (spec,) = VULKAN.compile([kernel(lanes=1)], plain)
    assert set(spec.requires) == {"int64", "workgroup_invocations>=1"}
    # Where the target keeps NaN, kernels rely on it.
    (spec,) = VULKAN.compile([kernel(lanes=1)], VULKAN.parse_target("vulkan:1.3+nan_preserve"))
    assert set(spec.requires) == {"int64", "nan_preserve", "workgroup_invocations>=1"}
    both = "vulkan:1.3+nan_preserve+float_controls2"
    (spec,) = VULKAN.compile([kernel(lanes=1)], VULKAN.parse_target(both))
    assert set(spec.requires) == {"int64", "nan_preserve", "float_controls2", "workgroup_invocations>=1"}


def test_f16_registers_ask_for_float16_only_beyond_storage():
    b = KernelBuilder("pick", [(DType.F16, False), (DType.F16, True)], 0)
    x = b.load(b.bindings[0], b.idx(0))
    positive = b.compare("gt", b.cast(x, F32), b.const(0.0, F32))
    b.store(b.bindings[1], b.idx(0), b.select(positive, x, b.load(b.bindings[0], b.idx(1))))
    assert "float16" in compile_vulkan(b.build()).requires


def test_readable_forms():
    text = CPU.emit_text([kernel()], HOST)
    assert 'define void @"double"' in text and ("llvm.fma" in text or "llvm.fmuladd" in text)
    text = VULKAN.emit_text([kernel(lanes=1)], VULKAN.parse_target("vulkan"))
    assert "; double" in text and "OpEntryPoint" in text and "OpLoopMerge" in text


def test_many_buffers_are_valid_spirv():
    b = KernelBuilder("wide", [*((F32, False) for _ in range(20)), (F32, True)], 2)
    total = b.const(0.0, F32)
    for binding in b.bindings[:-1]:
        total = b.add(total, b.load(binding, b.param(1)))
    b.store(b.bindings[-1], b.param(0), total)
    spec = compile_vulkan(b.build())
    assert not spec.entries[0].table_in_push_constants


def test_damaged_spirv_is_noticed_by_the_validator():
    (spec,) = VULKAN.compile([kernel(lanes=1)], VULKAN.parse_target(VULKAN_TARGET))
    validate(spec.code)
    with pytest.raises(AssertionError):
        validate(spec.code[:-8])


def test_the_vulkan_backend_needs_no_llvm():
    code = (
        "import sys; sys.modules['llvmlite'] = None\n"
        "from mansard.drivers.vulkan.compiler import BACKEND\n"
        "import mansard.drivers.cpu.compiler\n"
        "assert not any(m == 'torch' or m.startswith('elftools') for m in sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
