"""What a plan says about memory is compared with what lies there and with what kernels access."""

from __future__ import annotations

import dataclasses
import gc

import numpy as np
import pytest
from support.ir_graphs import matmul

from mansard import dims
from mansard.api import Model
from mansard.artifact.resources import MemoryResources
from mansard.compiler import CompileOptions, compile_graph
from mansard.dims import Dim
from mansard.dtypes import DType
from mansard.errors import ArtifactError
from mansard.ir import Constant, GraphBuilder
from mansard.plan import check
from mansard.plan.check import check_plan
from mansard.plan.claims import Claims
from mansard.plan.plan import AssertSpec, DispatchStep, Plan, Segment, TensorSpec
from mansard.plan.serialise import executables_from_json, executables_of, executables_to_json

DEVICES = ("cpu", pytest.param("vulkan", marks=pytest.mark.vulkan))
ROWS = Dim("n", 1, 64)


def compiled(device: str, rows=ROWS):
    """``tanh(x @ w)`` for ``n`` rows, in two dispatches or one."""
    b = GraphBuilder()
    x = b.input("x", (dims.symbol(rows) if isinstance(rows, Dim) else rows, 16), DType.F32)
    w = b.constant("w", Constant.of(np.eye(16, dtype=np.float32)), (16, 16), DType.F32)
    first = matmul(b, x, w)
    graph = b.build([matmul(b, first, w), first])
    return compile_graph(graph, CompileOptions(targets=(device,)))


def changed_step(plan: Plan, **changes) -> Plan:
    """The plan with fields of its first dispatch changed."""
    (device,) = plan.devices
    first, *rest = device.segments
    at = next(i for i, step in enumerate(first.steps) if isinstance(step, DispatchStep))
    steps = list(first.steps)
    steps[at] = dataclasses.replace(steps[at], **changes)
    segments = (Segment(first.wait, tuple(steps)), *rest)
    return dataclasses.replace(plan, devices=(dataclasses.replace(device, segments=segments),))


def changed_value(plan: Plan, kind: str, **changes) -> Plan:
    number = next(v.id for v in plan.values if v.kind == kind)
    values = [dataclasses.replace(v, **changes) if v.id == number else v for v in plan.values]
    return dataclasses.replace(plan, values=tuple(values))


def tiny(spec: TensorSpec) -> TensorSpec:
    return dataclasses.replace(spec, shape=(1,))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("rows", [ROWS, 64])
def test_a_plan_of_the_compiler_passes_for_all_its_sizes(device, rows):
    result = compiled(device, rows)
    claims = check_plan(result.plan)
    for n in (1, 7, 64):
        claims.check({"n": n})
    with Model(result.plan, MemoryResources(result.executables, result.weights)) as model:
        x = np.random.default_rng(0).standard_normal((64, 16)).astype(np.float32)
        for y in model(x):
            np.testing.assert_allclose(y, x, rtol=1e-6)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("rows", [ROWS, 64])
def test_a_tensor_of_other_bytes_than_its_value_is_refused(device, rows):
    plan = compiled(device, rows).plan
    with pytest.raises(ArtifactError, match=r"output .* is value \d+: 4 and"):
        check_plan(dataclasses.replace(plan, outputs=(tiny(plan.outputs[0]), *plan.outputs[1:])))
    wide = dataclasses.replace(plan.inputs[0], dtype=DType.F64)
    with pytest.raises(ArtifactError, match="input 'x' is value"):
        check_plan(dataclasses.replace(plan, inputs=(wide,)))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("rows", [ROWS, 64])
def test_a_value_smaller_than_what_a_kernel_accesses_is_refused(device, rows):
    plan = compiled(device, rows).plan
    small = changed_value(plan, "output", bytes=4)
    number = next(v.id for v in plan.values if v.kind == "output")
    outputs = tuple(tiny(s) if s.value == number else s for s in plan.outputs)
    small = dataclasses.replace(small, outputs=outputs)
    if isinstance(rows, int):
        with pytest.raises(ArtifactError, match=rf"the kernel writes all of value {number}: \d+ and 4"):
            check_plan(small)
    else:
        with pytest.raises(ArtifactError, match=rf"value {number}"):
            check_plan(small).check({"n": 2})
    small = changed_value(plan, "input", bytes=4)
    small = dataclasses.replace(small, inputs=(tiny(plan.inputs[0]),))
    with pytest.raises(ArtifactError, match=r"reads beyond value|given by no input"):
        check_plan(small)


@pytest.mark.parametrize("device", DEVICES)
def test_a_launch_that_the_kernel_was_not_compiled_for_is_refused(device):
    plan = compiled(device, 64).plan
    step = next(s for s in plan.devices[0].segments[0].steps if isinstance(s, DispatchStep))
    _, y, z = step.grid
    with pytest.raises(ArtifactError, match="it was compiled for"):
        check_plan(changed_step(plan, grid=(2**31, y, z)))
    if step.params:
        with pytest.raises(ArtifactError, match="it was compiled for"):
            check_plan(changed_step(plan, params=(2**40, *step.params[1:])))
    *reads, write = step.bindings
    beyond = dataclasses.replace(reads[0], offset=4)
    with pytest.raises(ArtifactError, match="reads beyond value"):
        check_plan(changed_step(plan, bindings=(beyond, *reads[1:], write)))
    before = dataclasses.replace(reads[0], offset=-4)
    with pytest.raises(ArtifactError, match="begins before value"):
        check_plan(changed_step(plan, bindings=(before, *reads[1:], write)))
    with pytest.raises(ArtifactError, match=r"of kind (input|constant)"):
        check_plan(changed_step(plan, bindings=(write, *reads[1:], reads[0])))
    with pytest.raises(ArtifactError, match="which is its binding 0, too"):
        check_plan(changed_step(plan, bindings=(write, *reads[1:], write)))


@pytest.mark.parametrize("device", DEVICES)
def test_a_call_of_sizes_for_which_a_plan_is_wrong_is_an_error(device):
    """At most one row fits the output, which the plan's other sizes do not say."""
    result = compiled(device)
    number = result.plan.outputs[0].value
    values = [dataclasses.replace(v, bytes=64) if v.id == number else v for v in result.plan.values]
    outputs = [dataclasses.replace(s, shape=(1, 16)) if s.value == number else s for s in result.plan.outputs]
    plan = dataclasses.replace(result.plan, values=tuple(values), outputs=tuple(outputs))
    with Model(plan, MemoryResources(result.executables, result.weights)) as model:
        assert model(np.ones((1, 16), np.float32))[0].shape == (1, 16)
        with pytest.raises(ArtifactError, match=rf"value {number}: .* where n=3"):
            model(np.ones((3, 16), np.float32))


def test_contracts_are_kept_with_the_code():
    plan = compiled("cpu").plan
    assert executables_from_json(executables_to_json(plan)) == executables_of(plan)
    bare = dataclasses.replace(executables_of(plan)[0], contracts=())
    device = dataclasses.replace(plan.devices[0], executables=(bare,))
    text = executables_to_json(dataclasses.replace(plan, devices=(device,)))
    with pytest.raises(ArtifactError, match="0 contracts for"):
        executables_from_json(text)


def test_claims_are_decided_as_early_as_they_can_be():
    n = dims.symbol(ROWS)
    claims = Claims()
    claims.at_most(n, 64, "always")
    claims.at_most(dims.mul(n, 4), dims.mul(n, 8), "always")
    claims.equal(dims.mul(n, 4), dims.mul(n, 4), "always")
    assert not claims.open
    with pytest.raises(ArtifactError, match="never: 65"):
        claims.at_most(65, n, "never")
    with pytest.raises(ArtifactError, match=r"never: 4\*n"):
        claims.equal(dims.mul(n, 4), 2, "never")
    claims.at_most(n, 8, "sometimes")
    claims.equal(n, 8, "at eight")
    claims.check({"n": 8})
    for wrong in (7, 9):
        with pytest.raises(ArtifactError, match=f"{wrong} and 8 where n={wrong}"):
            claims.check({"n": wrong})


@pytest.mark.parametrize(
    ("check", "message"),
    [
        (AssertSpec(99, "holds"), "99"),
        (AssertSpec(0, "holds"), "is of a value of bool"),
        (AssertSpec(0, "gather", "", (0, 5), DType.I64), "is of a value of i64"),
        (AssertSpec(1, "gather", "", (0, 5), DType.F32), "is of a value of f32"),
        (AssertSpec(1, "gather", "", (0, dims.symbol(Dim("m", 1, 9))), DType.I32), "unknown dims: m"),
    ],
)
def test_an_assert_is_of_a_value_that_can_be_checked(check, message):
    plan = compiled("cpu").plan
    assert plan.inputs[0].value == 0
    check_plan(dataclasses.replace(plan, asserts=(AssertSpec(1, "holds"),)))
    with pytest.raises(ArtifactError, match=message):
        check_plan(dataclasses.replace(plan, asserts=(check,)))


def test_a_plan_is_checked_once():
    plan = compiled("cpu").plan
    claims = check_plan(plan)
    assert check_plan(plan) is claims
    copy = dataclasses.replace(plan)
    assert check_plan(copy) is not claims
    gc.collect()  # what earlier tests left
    known = len(check._checked)
    del copy
    gc.collect()
    assert len(check._checked) == known - 1


@pytest.mark.parametrize("device", DEVICES)
def test_memory_that_no_step_has_written_is_not_read(device):
    plan = compiled(device, 64).plan
    (program,) = plan.devices
    steps = [s for segment in program.segments for s in segment.steps]
    without = dataclasses.replace(program, segments=(Segment((), tuple(steps[1:])),))
    with pytest.raises(ArtifactError, match=r"which no step writes|before a step has written it"):
        check_plan(dataclasses.replace(plan, devices=(without,)))
    turned = dataclasses.replace(program, segments=(Segment((), tuple(steps[::-1])),))
    with pytest.raises(ArtifactError, match="before a step has written it"):
        check_plan(dataclasses.replace(plan, devices=(turned,)))
    none = dataclasses.replace(program, segments=(Segment((), ()),))
    with pytest.raises(ArtifactError, match=r"an output is value .*, which no step writes"):
        check_plan(dataclasses.replace(plan, devices=(none,)))
