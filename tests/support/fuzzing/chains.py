"""Random chains of a framework's ops: compiled from its model, and compared with its evaluator."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import mansard
from mansard.errors import MansardError
from support.fuzzing.case import Array, Disagreement, Refusal, shortest
from support.fuzzing.comparison import Tolerance, wrong

RELATIVE = 1e-4
"""Of the largest magnitude expected: orders of sums and polynomials differ."""
LARGEST, MOST_ELEMENTS = 1e4, 4096


@dataclass(frozen=True)
class Step:
    """One op: its name, constants after the tensor that the chain goes through, attributes."""

    op: str
    constants: tuple[Array, ...] = ()
    attributes: tuple[tuple[str, Any], ...] = ()

    def __str__(self) -> str:
        shown = [repr(c.tolist()) if c.size < 9 else f"{c.dtype}{list(c.shape)}" for c in self.constants]
        return f"{self.op}({', '.join([*shown, *(f'{k}={v}' for k, v in self.attributes)])})"


@dataclass(frozen=True)
class Chain:
    """Ops one after another on an input."""

    framework: str
    steps: tuple[Step, ...]
    x: Array

    def __str__(self) -> str:
        return f"{self.framework}: x = {self.x.tolist()}, {' -> '.join(map(str, self.steps))}"


@dataclass(frozen=True)
class Framework:
    """How a chain becomes a model, and what the framework computes of it (it may raise any exception)."""

    model: Callable[[Chain], Any]
    evaluate: Callable[[Chain], Array]
    options: Callable[[Chain], dict[str, Any]]


def is_tame(value: Array) -> bool:
    """Whether a step's result can be compared after further steps."""
    if value.size == 0 or value.size > MOST_ELEMENTS:
        return False
    return bool(
        np.all(np.isfinite(value.astype(np.float64))) and np.abs(value.astype(np.float64)).max() < LARGEST
    )


def check_chain(chain: Chain, framework: Framework, device: str) -> None:
    """Raise Disagreement where a device gives another result than the framework."""
    where = f"{chain.framework}: {device}"
    try:
        expected = framework.evaluate(chain)
    except Exception:  # not a chain: an op does not take what the one before gives
        return
    if not is_tame(expected):
        return
    try:
        options = framework.options(chain)
        with mansard.compile(
            framework.model(chain), devices=device, fallback="error", cache=False, **options
        ) as m:
            actual = np.asarray(m(chain.x))
    except MansardError as error:
        raise Refusal(f"{where}: {type(error).__name__}: {' '.join(str(error).split())[:160]}") from error
    except Exception as error:
        raise Disagreement(f"{where}: foreign {type(error).__name__}", f"{chain}\n{error}") from error
    ops = " ".join(step.op for step in chain.steps)
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        detail = f"is {actual.dtype}{list(actual.shape)}, not {expected.dtype}{list(expected.shape)}"
        raise Disagreement(f"{where}: {ops}", f"{chain}\n{detail}")
    largest = max(1.0, float(np.abs(expected.astype(np.float64)).max(initial=0.0)))
    mask = wrong(actual, [expected], Tolerance(absolute=RELATIVE * largest, zero_sign=False))
    if mask.any():
        place = tuple(map(int, np.argwhere(mask)[0]))
        detail = f"at {place}: {actual[place].item()!r}, expected {expected[place].item()!r}"
        raise Disagreement(f"{where}: {ops}", f"{chain}\n{detail}")


def examine(chain: Chain, framework: Framework, devices: Sequence[str]) -> None:
    """A chain on each device; a failure is that of the fewest steps that fail."""
    for device in devices:
        if device == "framework":
            continue
        try:
            check_chain(chain, framework, device)
        except Disagreement as failure:
            raise _shortest(chain, framework, device, failure) from failure


def _shortest(chain: Chain, framework: Framework, device: str, failure: Disagreement) -> Disagreement:
    def check(steps: list[Step]) -> None:
        check_chain(Chain(chain.framework, tuple(steps), chain.x), framework, device)

    return shortest(chain.steps, check, failure)


def grow(
    name: str,
    x: Array,
    length: int,
    choose: Callable[[Array], Step | None],
    evaluate: Callable[[Chain], Array],
) -> Chain:
    """A chain of up to ``length`` steps whose results stay tame."""
    steps: list[Step] = []
    value = x
    for _ in range(length):
        step = choose(value)
        if step is None:
            continue
        try:
            result = evaluate(Chain(name, (step,), value))
        except Exception:  # what the framework itself does not take
            continue
        if is_tame(result) and result.dtype == np.float32:
            steps.append(step)
            value = result
    return Chain(name, tuple(steps), x)


def shape_of(rng: np.random.Generator) -> tuple[int, ...]:
    """A shape of one to four dims, with few elements."""
    rank = int(rng.integers(1, 5))
    shape = tuple(int(rng.choice([1, 2, 3, 4, 6, 9])) for _ in range(rank))
    return shape if math.prod(shape) <= 400 else shape[:2]
