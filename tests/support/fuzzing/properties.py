"""What a run goes over: properties by name, each a strategy and what has to hold for what it draws."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.errors import FlakyFailure

from mansard.dtypes import DType
from support.fuzzing import chains, framework, graphs, scalars, structured
from support.fuzzing.case import Array, Arrays, Case, Disagreement, Refusal, check, compare, reference
from support.fuzzing.comparison import Tolerance
from support.fuzzing.values import DTYPES

Examine = Callable[[Any, Sequence[str]], None]
FRAMEWORK = "framework"
"""The device name under which the interpreter is compared with PyTorch."""


@dataclass(frozen=True)
class Property:
    """A strategy, what has to hold of each case on devices, and how many cases one round draws."""

    cases: Callable[[], st.SearchStrategy[Any]]
    examine: Examine
    examples: int
    shrinks: bool = True
    """Whether hypothesis makes failing cases smaller, which takes hundreds of tries."""


def on_devices(case: Case, devices: Sequence[str]) -> None:
    """Devices against the interpreter; the interpreter against PyTorch where ``devices`` is that."""
    if tuple(devices) != (FRAMEWORK,):
        check(case, devices)
        return
    for inputs in case.calls:
        try:
            expected = case.framework(inputs) if case.framework else None
        except NotImplementedError:  # PyTorch does not define it
            continue
        if expected is not None:
            compare(case, FRAMEWORK, inputs, reference(case, inputs), [expected], case.tolerances)


def on_programs(case: Any, devices: Sequence[str]) -> None:
    """Compiled programs against eager."""
    from support.fuzzing.programs import check_program, minimised

    for device in devices:
        if device != FRAMEWORK:
            try:
                check_program(case, device)
            except Disagreement as failure:
                raise minimised(case, device, failure) from failure


def _programs() -> st.SearchStrategy[Any]:
    from support.fuzzing.programs import programs

    return programs()


def _chains_of(framework_module: str) -> tuple[Callable[[], st.SearchStrategy[Any]], Examine]:
    """A strategy of a framework's chains of ops, and their comparison with the framework."""

    def cases() -> st.SearchStrategy[Any]:
        module = importlib.import_module(f"support.fuzzing.{framework_module}")
        strategy: st.SearchStrategy[Any] = module.chains()
        return strategy

    def on_chains(case: Any, devices: Sequence[str]) -> None:
        module = importlib.import_module(f"support.fuzzing.{framework_module}")
        chains.examine(case, module.FRAMEWORK, devices)

    return cases, on_chains


@st.composite
def scalar_cases(draw: structured.Draw) -> Case:
    """All scalar ops or conversions of an element type."""
    make = draw(st.sampled_from([scalars.scalar_case, scalars.conversion_case]))
    return make(draw(st.sampled_from(DTYPES)), draw(st.integers(0, 2**32 - 1)))


OF_FRAMEWORKS = ("program", "onnx", "jax")
"""Properties that compare a framework's models with the framework, on single devices."""
PROPERTIES: dict[str, Property] = {
    "scalar": Property(scalar_cases, on_devices, 3),
    **{name: Property(strategy, on_devices, 25) for name, strategy in structured.PROPERTIES.items()},
    "graph": Property(graphs.random_graphs, on_devices, 25),
    "program": Property(_programs, on_programs, 10, shrinks=False),
    "onnx": Property(*_chains_of("onnx_chains"), 25, shrinks=False),
    "jax": Property(*_chains_of("jax_chains"), 25, shrinks=False),
}


def run_round(
    name: str,
    number: int,
    devices: Sequence[str],
    examples: int | None = None,
    begin: Callable[[Any], None] | None = None,
) -> list[str]:
    """Draw and examine the cases of one seed; returns why devices refused some.

    ``begin`` gets every case before it runs. Raises Disagreement for the smallest case that fails.
    """
    prop, refusals = PROPERTIES[name], []
    last: list[Disagreement] = []

    @seed(number)
    @settings(
        max_examples=examples or prop.examples, database=None, deadline=None, report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck), phases=(Phase.generate, Phase.shrink)[: 1 + prop.shrinks],
        print_blob=False,
    )  # fmt: skip
    @given(prop.cases())
    def every_case(case: Any) -> None:
        if begin is not None:
            begin(case)
        try:
            prop.examine(case, devices)
        except Refusal as refusal:
            refusals.append(str(refusal))
        except Disagreement as failure:
            last.append(failure)
            raise

    try:
        every_case()
    except FlakyFailure as flaky:
        failure = last[0]
        failure.signature += " (not every time)"
        raise failure from flaky
    return refusals


# Everything once ----------------------------------------------------------------------------------
def sweep(number: int, devices: Sequence[str]) -> Iterator[Disagreement | Refusal]:
    """Every scalar op and conversion on every element type, each failure with a graph of that op alone."""
    if tuple(devices) != (FRAMEWORK,):
        from support.fuzzing.programs import sweep_programs

        for device in devices:
            yield from sweep_programs(device, number)
    for case in scalars.scalar_cases(number):
        if tuple(devices) == (FRAMEWORK,):
            yield from against_framework(case)
        else:
            yield from _failures(case, devices)


def _failures(case: Case, devices: Sequence[str]) -> Iterator[Disagreement | Refusal]:
    try:
        check(case, devices)
    except Refusal as refusal:
        yield refusal
    except Disagreement as failure:
        if len(case.graph.outputs) == 1:
            yield failure
            return
        # One op at a time: another may fail too, and a graph of one output says which.
        half = len(case.graph.outputs) // 2
        for part in (slice(0, half), slice(half, None)):
            yield from _failures(part_of(case, part), devices)


def part_of(case: Case, part: slice) -> Case:
    """The case with some of its outputs, and the ops these need."""
    from mansard.passes.canonical.dce import eliminate_dead

    graph = replace(case.graph, outputs=case.graph.outputs[part], output_names=case.graph.output_names[part])
    return replace(case, graph=eliminate_dead(graph), tolerances=case.tolerances[part])


def against_framework(case: Case) -> Iterator[Disagreement]:
    """Each scalar op of the interpreter against the function of PyTorch."""
    if case.name != "scalar op":
        return
    x, y, condition = case.calls[0]
    dtype = case.graph.inputs[0].type.dtype
    results = dict(zip(case.graph.output_names, reference(case, case.calls[0]), strict=True))
    limits = dict(zip(case.graph.output_names, case.tolerances, strict=True))
    for op in scalars.BUILT_IN:
        if op.name not in results:
            continue
        kept = defined(op.name, dtype, x, y)
        operands = [a[kept] for a in (x, y)[: op.arity - op.conditional]]
        tensors = [framework.tensor(a, dtype) for a in operands]
        if op.conditional:
            tensors = [framework.tensor(condition[kept], DType.BOOL), *tensors]
        result = op.result_dtype(dtype)
        try:
            expected = framework.array(framework.apply(op.name, tensors), result)
        except NotImplementedError:  # no such kernel for the type
            continue
        except RuntimeError as error:
            if "not implemented" in str(error) or "not supported" in str(error):
                continue
            raise
        limit = (
            replace(limits[op.name], ulps=limits[op.name].ulps + 1)
            if result.is_float and op.name not in EXACTLY
            else limits[op.name]
        )
        try:
            compare(
                _single(op.name, case), FRAMEWORK, operands, [results[op.name][kept]], [[expected]], [limit]
            )
        except Disagreement as failure:
            yield failure


EXACTLY = frozenset(
    {"neg", "abs", "min", "max", "select", "floor", "ceil", "trunc", "round", "sign", "add", "sub", "mul"}
)
"""Ops of which PyTorch's vectorised kernels give every bit; of the others they may miss the last one."""


def _single(name: str, case: Case) -> Case:
    place = case.graph.output_names.index(name)
    return part_of(case, slice(place, place + 1))


def defined(op: str, dtype: DType, x: Array, y: Array) -> Array:
    """Where PyTorch defines an op, and computes it as it says."""
    everywhere = np.ones(x.shape, np.bool_)
    if dtype.is_int:
        if op in ("div", "rem", "floordiv"):
            # The quotient that overflows ends the process there.
            overflows = (x == np.iinfo(x.dtype).min) & (y == -1) if dtype.is_signed else ~everywhere
            return np.asarray((y != 0) & ~overflows)
        return np.asarray(y >= 0) if op == "pow" else everywhere
    if not dtype.is_float:
        return everywhere
    wide_x, wide_y = x.astype(np.float64), y.astype(np.float64)
    with np.errstate(all="ignore"):
        if op == "rem":  # its vector kernel gives NaN where the quotient overflows, or a divisor is subnormal
            register = np.float64 if dtype is DType.F64 else np.float32
            overflows = np.isinf((x.astype(register) / y.astype(register)).astype(register)) & np.isfinite(
                wide_x
            )
            return np.asarray(~(overflows | (np.abs(wide_y) < np.finfo(register).tiny)) | (wide_y == 0))
        if op in ("sinh", "cosh"):  # halves of an exponential that overflows before they do
            return np.asarray(
                ~((np.abs(wide_x) > 88) & (np.abs(wide_x) < 90))
                & ~((np.abs(wide_x) > 709) & (np.abs(wide_x) < 711))
            )
    return everywhere


__all__ = ["FRAMEWORK", "PROPERTIES", "Arrays", "Property", "Tolerance", "run_round", "sweep"]
