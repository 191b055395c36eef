"""Random PyTorch programs of common functional ops: compiled as modules, and compared with eager."""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

import mansard
from mansard.errors import MansardError
from support.fuzzing import framework
from support.fuzzing.case import Disagreement, Refusal, shortest
from support.fuzzing.comparison import Tolerance, wrong
from support.fuzzing.steps import EXACT_STEPS, SMOOTH_STEPS
from support.fuzzing.structured import Draw, generator
from support.fuzzing.values import exact, sprinkled

RELATIVE = 2e-5
"""Of the largest magnitude expected of a result whose steps were not all exact."""

MOST_ELEMENTS = 4096


@dataclass(frozen=True)
class ProgramCase:
    """A program and an input; ``dynamic`` makes the first dim of the input a symbol."""

    steps: tuple[str, ...]
    taps: tuple[int, ...]
    x: np.ndarray[Any, Any]
    dynamic: bool
    side_by_side: bool = False
    """Every step on the input, rather than on the result of the one before."""


class Program(torch.nn.Module):
    """Steps by name, one after another; some of them are results beside the last."""

    def __init__(self, case: ProgramCase) -> None:
        super().__init__()
        self.steps, self.taps, self.side_by_side = case.steps, frozenset(case.taps), case.side_by_side

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        results = []
        if self.side_by_side:
            # A result that is the input itself would be an alias.
            return tuple((EXACT_STEPS.get(name) or SMOOTH_STEPS[name])(x) + 0.0 for name in self.steps)
        for number, name in enumerate(self.steps):
            x = (EXACT_STEPS.get(name) or SMOOTH_STEPS[name])(x)
            if number in self.taps:
                results.append(x)
        return (*results, x)


@st.composite
def programs(draw: Draw) -> ProgramCase:
    """Exact steps, then smooth ones; the input has NaN and infinities at times."""
    shape = tuple(draw(st.lists(st.sampled_from([1, 2, 3, 4, 8, 17]), max_size=3)))
    x = exact(generator(draw), mansard_f32(), shape)
    x = sprinkled(generator(draw), x, draw(st.sampled_from([0.0, 0.05, 0.2])))
    steps = draw(st.lists(st.sampled_from(list(EXACT_STEPS)), min_size=1, max_size=6))
    steps += draw(st.lists(st.sampled_from(list(SMOOTH_STEPS)), max_size=3))
    taps = tuple(sorted(draw(st.sets(st.integers(0, len(steps) - 1), max_size=2))))
    return ProgramCase(tuple(steps), taps, x, bool(shape) and shape[0] > 1 and draw(st.integers(0, 3)) == 3)


def mansard_f32() -> Any:
    """The element type of programs."""
    from mansard.dtypes import DType

    return DType.F32


@contextlib.contextmanager
def _native_kernels() -> Iterator[None]:
    """PyTorch's own kernels, whose ``gelu`` of infinity is infinity; that of oneDNN is NaN."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # about TF32 on GPUs
        with torch.backends.mkldnn.flags(enabled=False):
            yield


def check_program(case: ProgramCase, device: str) -> None:
    """Raise Disagreement where a compiled program gives other results than eager."""
    program = Program(case)
    x = framework.tensor(case.x, mansard_f32())
    try:
        with _native_kernels():
            expected = program(x)
    except (RuntimeError, IndexError):
        return  # not a program: a step does not take what the one before gives
    if any(t.numel() > MOST_ELEMENTS for t in expected):
        return
    where = f"program: {device}"
    dynamic = {"x": {0: mansard.Dim("n", 2, 64)}} if case.dynamic else None
    try:
        model = mansard.compile(
            program, (x,), devices=device, fallback="error", cache=False, dynamic_shapes=dynamic
        )
        with model:
            result = model(x)
            actual = result if isinstance(result, tuple | list) else (result,)
    except MansardError as error:
        raise Refusal(f"{where}: {type(error).__name__}: {' '.join(str(error).split())[:160]}") from error
    except Exception as error:
        raise Disagreement(
            f"{where}: foreign {type(error).__name__}", f"{describe(case)}\n{error}"
        ) from error
    for number, (a, b) in enumerate(zip(actual, expected, strict=True)):
        _compare(case, f"{where}: {' '.join(case.steps)}", number, torch.as_tensor(a), b)


def minimised(case: ProgramCase, device: str, failure: Disagreement) -> Disagreement:
    """The failure of the shortest program that leaving out steps leads to: each try is a compilation."""
    return shortest(
        case.steps, lambda steps: check_program(replace(case, steps=tuple(steps), taps=()), device), failure
    )


def sweep_programs(device: str, number: int) -> Iterator[Disagreement | Refusal]:
    """Every step alone, many in one module, on tensors of several ranks with and without specials."""
    rng = np.random.default_rng(number)
    for shape in ((3, 17), (5,)):
        for share in (0.0, 0.3):
            x = sprinkled(rng, exact(rng, mansard_f32(), shape), share)
            names = (*EXACT_STEPS, *SMOOTH_STEPS)
            yield from _failing_steps(device, x, tuple(name for name in names if _taken(name, x)))


def _taken(name: str, x: np.ndarray[Any, Any]) -> bool:
    """Whether eager takes a tensor of this shape."""
    try:
        (EXACT_STEPS.get(name) or SMOOTH_STEPS[name])(framework.tensor(x, mansard_f32()))
    except (RuntimeError, IndexError):
        return False
    return True


def _failing_steps(
    device: str, x: np.ndarray[Any, Any], names: tuple[str, ...]
) -> Iterator[Disagreement | Refusal]:
    try:
        check_program(ProgramCase(names, (), x, dynamic=False, side_by_side=True), device)
    except (Disagreement, Refusal) as failure:
        if len(names) == 1:
            yield failure
            return
        half = len(names) // 2
        for part in (names[:half], names[half:]):
            yield from _failing_steps(device, x, part)


def _compare(
    case: ProgramCase, signature: str, number: int, actual: torch.Tensor, expected: torch.Tensor
) -> None:
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        detail = f"is {actual.dtype}{list(actual.shape)}, not {expected.dtype}{list(expected.shape)}"
        raise Disagreement(signature, f"{describe(case)}\nresult {number} {detail}")
    largest = max([1.0, *(abs(v) for v in expected.double().flatten().tolist() if math.isfinite(v))])
    tolerance = Tolerance(absolute=RELATIVE * largest, zero_sign=False)
    mask = wrong(actual.numpy(), [expected.numpy()], tolerance)
    if mask.any():
        place = tuple(map(int, np.argwhere(mask)[0]))
        detail = f"at {place}: {actual[place].item()!r}, eager {expected[place].item()!r}"
        raise Disagreement(signature, f"{describe(case)}\nresult {number} {detail}")


def describe(case: ProgramCase) -> str:
    """The program as text."""
    more = f"results after {list(case.taps)} and the last, dynamic {case.dynamic}"
    return f"steps {list(case.steps)}, {more}, x = {case.x.tolist()}"
