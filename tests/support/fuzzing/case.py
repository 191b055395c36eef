"""A graph with inputs for some calls, and how its results on devices are compared with the interpreter's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from mansard.api import Model
from mansard.artifact.resources import MemoryResources
from mansard.compiler import CompileOptions, compile_graph
from mansard.dtypes import DType
from mansard.errors import DeviceError, MansardError, PlacementError
from mansard.ir import Graph
from mansard.ir.interpreter.graph import interpret
from mansard.placement import PlacementOptions
from mansard.reducer.delta import needed
from support.fuzzing.comparison import EXACT, Tolerance, wrong
from support.fuzzing.values import flushed

Array = npt.NDArray[np.generic]
Arrays = Sequence[Array]
Step = TypeVar("Step")
_BF16 = DType.BF16.numpy
_SHOWN = 4


@dataclass(frozen=True)
class Case:
    """A graph and the inputs of its calls; ``tolerances`` has an entry for each output."""

    name: str
    graph: Graph
    calls: tuple[tuple[Array, ...], ...]
    tolerances: tuple[Tolerance, ...]
    pins: tuple[tuple[str, str], ...] = ()
    """What a run on several devices places where."""
    carried: bool = False
    """Whether the results are bits of the operands, of which nothing may be lost."""
    framework: Callable[[Arrays], list[Array]] | None = field(default=None, compare=False)
    """What PyTorch computes of the inputs of a call, where the graph has a counterpart there."""


class Disagreement(AssertionError):
    """A result that is not what defines it. ``signature`` is equal for failures of one cause, as a rule."""

    def __init__(
        self, signature: str, detail: str, case: Case | None = None, output: int | None = None
    ) -> None:
        self.signature, self.detail, self.case, self.output = signature, detail, case, output
        super().__init__(f"{signature}\n{detail}")


class Refusal(Exception):
    """A device that states it cannot run a graph: no failure, but counted."""


def shortest(
    steps: Sequence[Step], check: Callable[[list[Step]], None], failure: Disagreement
) -> Disagreement:
    """The failure of the fewest steps that leaving some out leads to; ``check`` raises one, or Refusal."""
    last = failure

    def fails(kept: list[Step]) -> bool:
        nonlocal last
        try:
            check(kept)
        except Disagreement as again:
            last = again
            return True
        except Refusal:
            pass
        return False

    if fails(list(steps)):
        needed(steps, fails)
    return last


def reference(case: Case, inputs: Arrays) -> list[Array]:
    """The interpreter's results."""
    with np.errstate(all="ignore"):
        return interpret(case.graph, inputs)


def check(case: Case, devices: Sequence[str]) -> None:
    """Raise Disagreement where a call on devices gives other results than the interpreter.

    Devices other than the CPU may take subnormal numbers for zeros, and give zeros for them; instructions
    that round to bf16 do so on CPUs too.
    """
    where = "+".join(devices)
    with compiled(case, devices) as model:
        for inputs in case.calls:
            references = [reference(case, inputs)]
            tolerances = list(case.tolerances)
            if not case.carried:
                references.append([flushed(a) if a.dtype == _BF16 else a for a in references[0]])
            if any(not d.startswith("cpu") for d in devices) and not case.carried:
                references.append(reference(case, [flushed(a) for a in inputs]))
                references += [[flushed(a) for a in r] for r in list(references)]
                tolerances = [_flushing(t, r) for t, r in zip(tolerances, references[0], strict=True)]
            compare(case, where, inputs, run(case, where, model, inputs), references, tolerances)


def _flushing(tolerance: Tolerance, result: Array) -> Tolerance:
    """A function of several steps loses what one of them flushes."""
    if tolerance.ulps == 0 or result.dtype not in (np.float32, np.float64):
        return tolerance
    return replace(tolerance, absolute=4 * float(np.finfo(result.dtype).tiny), zero_sign=False)


def compiled(case: Case, devices: Sequence[str]) -> Model:
    """The case's graph, compiled for devices alone. Raises Refusal, or Disagreement for a failure."""
    pins = case.pins if len(devices) > 1 else ()
    try:
        while True:
            options = CompileOptions(targets=tuple(devices), placement=_placement(pins), cache=False)
            try:
                result = compile_graph(case.graph, options)
                return Model(result.plan, MemoryResources(result.executables, result.weights))
            except PlacementError as error:
                # A pin is for a dispatch that fusion may not have left.
                matched = tuple(p for p in pins if f"no dispatch matches {p[0]!r}" not in str(error))
                if matched == pins:
                    raise Refusal(f"{'+'.join(devices)}: {error}") from error
                pins = matched
    except (Refusal, DeviceError):
        raise
    except Exception as error:  # whatever a sound graph raises is the failure looked for
        raise _raised(case, f"{'+'.join(devices)} compile", error) from error


def _placement(pins: tuple[tuple[str, str], ...]) -> PlacementOptions:
    return PlacementOptions(fallback="error", pins=pins)


def run(case: Case, where: str, model: Model, inputs: Arrays) -> list[Array]:
    """The outputs of one call."""
    try:
        outputs = model(**dict(zip([v.name for v in case.graph.inputs], inputs, strict=True)))
    except Exception as error:
        raise _raised(case, f"{where} run", error) from error
    return list(outputs) if isinstance(outputs, tuple) else [outputs]


def _raised(case: Case, where: str, error: Exception) -> Disagreement:
    kind = type(error).__name__ if isinstance(error, MansardError) else f"foreign {type(error).__name__}"
    first = str(error).splitlines()[0][:160] if str(error) else ""
    return Disagreement(f"{case.name}: {where}: {kind}", first, case)


def compare(
    case: Case,
    where: str,
    inputs: Arrays,
    actual: Arrays,
    references: Sequence[Arrays],
    tolerances: Sequence[Tolerance],
) -> None:
    """Raise Disagreement for the first output that agrees with no reference."""
    for number, (value, name) in enumerate(zip(case.graph.outputs, case.graph.output_names, strict=True)):
        result, expected = actual[number], references[0][number]
        signature = f"{case.name}: {where}: {name} {value.type.dtype.value}"
        if result.shape != expected.shape or result.dtype != expected.dtype:
            detail = f"is {result.dtype}{list(result.shape)}, not {expected.dtype}{list(expected.shape)}"
            raise Disagreement(signature, detail, case, number)
        mask = wrong(result, [r[number] for r in references], tolerances[number])
        if mask.any():
            detail = _describe(mask, inputs, result, expected)
            raise Disagreement(signature, detail, replace(case, calls=(tuple(inputs),)), number)


def _describe(mask: npt.NDArray[np.bool_], inputs: Arrays, actual: Array, expected: Array) -> str:
    lines = [f"{int(mask.sum())} of {mask.size} elements differ"]
    for place in map(tuple, np.argwhere(mask)[:_SHOWN]):
        operands = [repr(a[place].item()) for a in inputs if a.shape == actual.shape]
        of = f" of ({', '.join(operands)})" if operands else ""
        at = tuple(map(int, place))
        lines.append(f"at {at}{of}: {actual[place].item()!r}, expected {expected[place].item()!r}")
    return "\n".join(lines)


def exact_for(graph: Graph) -> tuple[Tolerance, ...]:
    """No tolerance for any output."""
    return (EXACT,) * len(graph.outputs)


def narrowed(case: Case, output: int) -> Case:
    """The case with one of its outputs."""
    value, name = case.graph.outputs[output], case.graph.output_names[output]
    graph = replace(case.graph, outputs=(value,), output_names=(name,))
    return replace(case, graph=graph, tolerances=(case.tolerances[output],))


def available(devices: Sequence[str]) -> tuple[str, ...]:
    """The drivers among ``devices`` with a device present."""
    from mansard.hal import registry

    present = {i.driver for i in registry.devices() if i.supported}
    return tuple(d for d in devices if d in present)
