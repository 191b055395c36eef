"""Failures as files: a graph's text, the inputs of a call as literals, and what they have to give."""

from __future__ import annotations

import math
import runpy
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from mansard import dtypes
from mansard.ir import Constant
from mansard.ir.parser import parse_graph
from mansard.ir.printer import print_graph
from support.fuzzing.case import Array, Case, Disagreement, check, narrowed
from support.fuzzing.comparison import Tolerance

COMMAND = "python tools/fuzz.py --reproduce"


def array(dtype: str, shape: Sequence[int], elements: Sequence[Any]) -> Array:
    """An operand of a reproducer."""
    with np.errstate(all="ignore"):
        return np.array(elements).astype(dtypes.parse(dtype).numpy).reshape(shape)


def source(failure: Disagreement, *, name: str, number: int, devices: Sequence[str]) -> str:
    """The text of a reproducer. A failure without a graph (a program) has its case in the description."""
    origin = f"Property {name}, seed {number}, on {', '.join(devices)}."
    head = f'"""{failure.signature}\n\n{failure.detail}\n\n{origin}\n"""\n'.replace("\\", "\\\\")
    if failure.case is None:
        return head
    case = narrowed(failure.case, failure.output) if failure.output is not None else failure.case
    constants = {v.name: c.load() for v, c in case.graph.constants.items()}
    lines = [
        head,
        f"DEVICES = {tuple(devices)!r}",
        f"NAME = {case.name!r}",
        f"PINS = {case.pins!r}",
        f"CARRIED = {case.carried}",
    ]
    lines.append('GRAPH = """\\\n' + print_graph(case.graph) + '"""')
    lines.append("CONSTANTS = {" + ", ".join(f"{k!r}: {_literal(a)}" for k, a in constants.items()) + "}")
    calls = ",\n".join("    [" + ", ".join(map(_literal, call)) + "]" for call in case.calls)
    lines.append(f"CALLS = [\n{calls},\n]")
    lines.append(f"TOLERANCES = {list(case.tolerances)!r}")
    return "\n".join(lines) + "\n"


def _literal(operand: Array) -> str:
    elements = operand.astype(np.float64) if operand.dtype.kind not in "iub" else operand
    return f"array({dtypes.from_numpy(operand.dtype).value!r}, {operand.shape}, {elements.ravel().tolist()})"


def read(path: Path) -> tuple[Case, tuple[str, ...]]:
    """The case of a file, and its devices."""
    names = {"array": array, "Tolerance": Tolerance, "nan": math.nan, "inf": math.inf}
    held = runpy.run_path(str(path), init_globals=names)
    graph = parse_graph(held["GRAPH"])
    constants = {v: Constant.of(held["CONSTANTS"][v.name], c.key) for v, c in graph.constants.items()}
    graph = replace(graph, constants=constants)
    calls = tuple(tuple(call) for call in held["CALLS"])
    case = Case(held["NAME"], graph, calls, tuple(held["TOLERANCES"]), held["PINS"], held["CARRIED"])
    return case, tuple(held["DEVICES"])


def reproduce(path: Path) -> None:
    """Raise Disagreement again, unless it is mended."""
    case, devices = read(path)
    check(case, devices)
