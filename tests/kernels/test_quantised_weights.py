"""Products with weights of 4- and 8-bit integers, against the interpreter, and that against NumPy."""

import numpy as np
import pytest
from support import vulkan_support
from support.decoders.quantised_weights import Form, Weights, graph_of, inputs_of
from support.graph_runner import check, compare, compiled, outputs
from support.kernels.pairs import pairs
from support.kernels.runner import require_cpu

from mansard import dims
from mansard.codegen.loop_nest import Nest
from mansard.codegen.schedules.cpu.quantised import dot as quantised_dot
from mansard.codegen.schedules.cpu.quantised import dot_in_parts, gemm_unpacked
from mansard.codegen.schedules.cpu.quantised import gemm as quantised_gemm
from mansard.compiler.targets import resolve_targets
from mansard.dims import Dim
from mansard.dtypes import DType
from mansard.ir.interpreter.graph import interpret
from mansard.passes.fusion.fuse import fuse
from mansard.passes.fusion.packable import mark_packable
from mansard.passes.pass_manager import run_passes
from mansard.passes.pipeline import canonical_steps
from mansard.placement import PlacementOptions

I4, U4, I8, U8, BF16, F16, F32 = (
    DType.I4, DType.U4, DType.I8, DType.U8, DType.BF16, DType.F16, DType.F32
)  # fmt: skip
FORMS = [
    Form(48, 128, 32),
    Form(37, 96, 32, I4, BF16),
    Form(50, 64, 32, I4, I8, scaled_x=True),
    Form(40, 128, 32, U4, F16, F16, U8),
    Form(40, 64, 16, U4, I8, zeros=I8, offsets=True, scaled_x=True),
    Form(33, 256, 32, U4, BF16, offsets=True, nested=True),
    Form(50, 64, 32, I8),
    Form(17, 60, 60, I8, BF16, DType.F32),
    Form(20, 51, 51, I8, DType.F32, DType.F32),
    Form(24, 260, 260, I8, I8, DType.F32, scaled_x=True),
    Form(24, 96, 32, U8, I8, zeros=U8),
    Form(16, 64, 0, I8, BF16),
    Form(1, 64, 32),
    Form(1, 64, 32, I4, BF16),
    Form(24, 512, 256, I4, I8, scaled_x=True),  # groups of several vectors
    Form(20, 60, 20, I4, I8),  # groups that are no pairs of four
    Form(20, 72, 24, I4, I8, F32),
    Form(40, 256, 16, I4, I8, scaled_x=True),  # vectors of several groups
    Form(80, 64, 32, I8, BF16),
]


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_the_interpreter_dequantises(form):
    graph, inputs = graph_of(form, 3), inputs_of(form, 3)
    x = inputs[0].astype(np.float64)
    if form.scaled_x:
        x = x * inputs[1].repeat(form.group, 1)
    expected = x @ Weights(form).dense.astype(np.float64).T
    (y,) = interpret(graph, inputs)
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())


def tolerance(device):
    """Matrix units of GPUs multiply weights that are rounded to bf16."""
    matrices = device == "vulkan" and vulkan_support.usable_device().features.get("cooperative_matrix", False)
    return 5e-3 if matrices else 2e-5


@pairs("form", FORMS, "rows", [1, 21], ids=str)
def test_every_form(device, form, rows):
    allowed = tolerance(device)
    check(graph_of(form, rows), inputs_of(form, rows), device, rtol=allowed, atol=allowed)


@pytest.mark.parametrize("form", [FORMS[1], FORMS[4]], ids=str)
def test_any_number_of_rows(device, form):
    graph, allowed = graph_of(form, dims.symbol(Dim("rows", 1, 64))), tolerance(device)
    with compiled(graph, device) as model:
        for rows in (1, 2, 9, 64):
            inputs = inputs_of(form, rows)
            compare(outputs(model, inputs), interpret(graph, inputs), allowed, allowed)


# By default each form has either number of rows, on v3 or v2 in turn, and one of them on v4.
@pytest.mark.parametrize(
    ("form", "rows", "target"),
    [
        pytest.param(FORMS[form], rows, target, marks=[] if (i + j + k) % 2 == 0 else pytest.mark.slow)
        for i, form in enumerate((0, 1, 3, 4, 5))
        for j, rows in enumerate((5, 40))
        for k, target in enumerate(("cpu:x86-64-v3", "cpu:x86-64-v2", "cpu:x86-64-v4"))
    ],
    ids=str,
)
def test_other_cpus(target, form, rows):
    """The same results without the instructions of newer CPUs."""
    from mansard.api import Model
    from mansard.artifact.resources import MemoryResources
    from mansard.compiler import CompileOptions, compile_graph

    require_cpu(target)
    graph, inputs = graph_of(form, rows), inputs_of(form, rows)
    result = compile_graph(graph, CompileOptions(targets=(target,)))
    with Model(result.plan, MemoryResources(result.executables, result.weights)) as model:
        compare(outputs(model, inputs), interpret(graph, inputs), 2e-5, 2e-5)


# Every pair of choices runs by default; the third one is given by the others.
@pytest.mark.parametrize(
    ("shared", "codes", "rows", "target"),
    [
        pytest.param(
            shared, codes, rows, target,
            marks=[] if (shared + (codes is U4) + (rows == 12)) % 2 == 0 else pytest.mark.slow,
        )
        for shared in (False, True)
        for codes in (I4, U4)
        for rows in (1, 12)
        for target in ("cpu", "cpu:x86-64-v3", "cpu:x86-64-v2")
    ],
)  # fmt: skip
def test_largest_sums(target, rows, codes, shared):
    """Products of the largest magnitudes, which no sum of 16 bits may lose: whole rows of them."""
    from mansard.api import Model
    from mansard.artifact.resources import MemoryResources
    from mansard.compiler import CompileOptions, compile_graph

    require_cpu(target)
    form = Form(16, 128, 32, codes, I8, F32)
    weights = Weights(form)
    low, high = (-8, 7) if codes is I4 else (0, 15)
    weights.arrays["codes"][:] = np.where(np.arange(16) % 2, low, high)[:, None]
    weights.arrays["scales"][:] = 1
    graph = graph_of(form, rows, shared=shared, weights=weights)
    x = np.where(np.arange(rows) % 2, 127, -128)[:, None] * np.ones((rows, 128))
    result = compile_graph(graph, CompileOptions(targets=(target,)))
    with Model(result.plan, MemoryResources(result.executables, result.weights)) as model:
        compare(outputs(model, [x.astype(np.int8)]), interpret(graph, [x.astype(np.int8)]), 0, 0)


@pytest.mark.parametrize("rows", [1, 40])
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_every_form_has_a_schedule_of_its_own(form, rows):
    """None falls into a schedule that reads codes one by one."""
    if form.n < 8:
        return
    target = resolve_targets(["cpu"], PlacementOptions(fallback="error"))[0].kernel
    graph = run_passes(graph_of(form, rows), canonical_steps())
    (dispatch,) = mark_packable(fuse(graph)).dispatches
    nest = Nest(dispatch)
    (root,) = (r for r in nest.roots if r.reduces)
    assert quantised_gemm.find(nest, root, target) is not None


@pytest.mark.parametrize(
    ("target", "form", "rows", "expected"),
    [
        ("cpu:x86-64-v3", FORMS[0], 40, True),
        ("cpu:x86-64-v3", FORMS[1], 40, True),  # bf16, which v3 does not multiply
        ("cpu:x86-64-v3", FORMS[0], 5, False),
        ("cpu:x86-64-v3", FORMS[2], 40, False),  # bytes, whose products are integers
        ("cpu:znver4", FORMS[1], 40, False),
        ("cpu:x86-64-v3", Form(64, 1 << 15, 32), 40, False),  # too deep for the stack
    ],
)
def test_many_rows_of_floats_unpack_weights_once(target, form, rows, expected):
    kernel_target = resolve_targets([target], PlacementOptions(fallback="error"))[0].kernel
    (dispatch,) = mark_packable(fuse(run_passes(graph_of(form, rows), canonical_steps()))).dispatches
    nest = Nest(dispatch)
    (root,) = (r for r in nest.roots if r.reduces)
    weights = quantised_gemm.find(nest, root, kernel_target)
    assert weights is not None
    assert gemm_unpacked.applies(nest, weights, kernel_target) is expected


@pairs("form", FORMS, "rows", [1, 11], ids=str)
def test_weights_with_another_reader(form, rows):
    """They are not packed, on CPUs."""
    graph, inputs = graph_of(form, rows, shared=True), inputs_of(form, rows)
    nests = [Nest(d) for d in mark_packable(fuse(run_passes(graph, canonical_steps()))).dispatches]
    (nest,) = (n for n in nests if any(r.reduces for r in n.roots))
    (root,) = (r for r in nest.roots if r.reduces)
    target = resolve_targets(["cpu"], PlacementOptions(fallback="error"))[0].kernel
    assert quantised_gemm.find(nest, root, target) is None
    if form.n > 1 and (form.group or form.k) % 16 == 0:
        assert quantised_dot.find(nest, root, target) is not None
    check(graph, inputs, "cpu", rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(
    ("target", "form", "expected"),
    [
        ("cpu:x86-64-v3", Form(50, 64, 32, I4, I8, scaled_x=True), True),
        ("cpu:znver4", Form(50, 64, 32, I4, I8, scaled_x=True), False),  # vectors of 128 codes
        ("cpu:znver4", Form(50, 128, 32, I4, I8, scaled_x=True), True),
        ("cpu:x86-64-v3", Form(24, 512, 256, I4, I8), True),
        ("cpu:x86-64-v3", Form(24, 2048, 1024, I4, I8), False),  # too many vectors of a group
        ("cpu:x86-64-v3", Form(20, 72, 24, I4, I8), False),  # groups that are no part of a vector
        ("cpu:x86-64-v3", Form(40, 64, 32, U4, I8), False),
        ("cpu:x86-64-v3", Form(40, 64, 32, I4, BF16), False),
        ("cpu:x86-64-v3", Form(40, 1 << 18, 32, I4, I8), False),  # too deep for the stack
    ],
    ids=str,
)
def test_halves_of_bytes_are_multiplied_apart(target, form, expected):
    kernel_target = resolve_targets([target], PlacementOptions(fallback="error"))[0].kernel
    graph = run_passes(graph_of(form, 1, shared=True), canonical_steps())
    nests = [Nest(dispatch) for dispatch in mark_packable(fuse(graph)).dispatches]
    (nest,) = (n for n in nests if any(r.reduces for r in n.roots))
    (root,) = (r for r in nest.roots if r.reduces)
    product = quantised_dot.find(nest, root, kernel_target)
    assert product is not None
    assert dot_in_parts.applies(nest, product, kernel_target) is expected


# By default each form is on every target, one half with weights that have another reader.
@pytest.mark.parametrize(
    ("form", "shared", "target"),
    [
        pytest.param(FORMS[form], shared, target, marks=[] if (i + k + shared) % 2 == 0 else pytest.mark.slow)
        for i, form in enumerate((2, 14, 17, 18))
        for shared in (False, True)
        for k, target in enumerate(("cpu", "cpu:x86-64-v3", "cpu:x86-64-v2"))
    ],
    ids=str,
)
def test_a_row_has_the_sums_of_a_window(target, form, shared):
    """To the last bit, whichever instructions there are."""
    from mansard.api import Model
    from mansard.artifact.resources import MemoryResources
    from mansard.compiler import CompileOptions, compile_graph

    require_cpu(target)
    weights, inputs, results = Weights(form), inputs_of(form, 9), []
    for rows in (1, 9):
        result = compile_graph(
            graph_of(form, rows, shared=shared, weights=weights), CompileOptions(targets=(target,))
        )
        with Model(result.plan, MemoryResources(result.executables, result.weights)) as model:
            results.append(outputs(model, [x[:rows] for x in inputs])[0])
    np.testing.assert_array_equal(results[0][0], results[1][0])
