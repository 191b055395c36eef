"""Conditions on symbolic sizes that decompositions assume.

A rule that branches on a size makes torch record a guard: the decomposed program is right for the sizes that
take the example's branch. Guards of the export itself become ranges of dims, or errors; later ones are
ignored.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import sympy
import torch

from mansard.errors import UnsupportedOpError
from mansard.frontends.pytorch.locations import current_location
from mansard.frontends.pytorch.sizes.constraints import guards, is_of_layout, shape_constraints
from mansard.frontends.pytorch.sizes.symbols import SymbolTable, shape_environment

Rule = Callable[..., Any]
_SAMPLES = 200
_WIDE = 4096
"""Sizes sampled of a dim without an upper bound."""


class DecompositionGuards:
    """The guards that are recorded while a program is decomposed, with the op whose rule did so."""

    def __init__(self, program: torch.export.ExportedProgram) -> None:
        self._environment = shape_environment(program)
        self._ranges = dict(program.range_constraints)
        self._names = _names(program)
        self._symbols = SymbolTable.of(program, {})
        self._constraints = shape_constraints(program, self._symbols, guards(program))
        self._before = self._count()
        self._ops: list[tuple[int, str, str]] = []
        self._depth = 0

    def watch(self, table: Mapping[Any, Rule]) -> dict[Any, Rule]:
        """The rules; each notes the guards that it adds."""
        if self._environment is None:
            return dict(table)
        return {op: functools.partial(self._apply, op, rule) for op, rule in table.items()}

    def _apply(self, op: Any, rule: Rule, /, *args: Any, **kwargs: Any) -> Any:
        before = self._count()
        self._depth += 1
        try:
            return rule(*args, **kwargs)
        finally:
            self._depth -= 1
            if self._depth == 0 and self._count() > before:
                self._ops.append((self._count(), str(op).removesuffix(".default"), current_location()))

    def check(self) -> None:
        """Raise UnsupportedOpError if a guard does not hold for all sizes that the exported program takes."""
        if self._environment is None:
            return
        for number, recorded in enumerate(self._environment.guards[self._before :], self._before):
            guard = recorded.expr
            counterexample = None if is_of_layout(recorded) else self._counterexample(guard)
            if counterexample is None:
                continue
            op, location = next(
                ((o, at) for end, o, at in self._ops if number < end), ("a decomposition", "")
            )
            names = {s: sympy.Symbol(self._names.get(s, str(s))) for s in guard.free_symbols}
            sizes = ", ".join(f"{names[s]} = {v}" for s, v in counterexample.items())
            raise UnsupportedOpError(
                op,
                location,
                "its lowering depends on the size of a dynamic dim: it is right while "
                f"{guard.xreplace(names)}, which {sizes} violates; make that dim static, or give it a range "
                "or a divisor for which that holds",
            )

    def _count(self) -> int:
        return 0 if self._environment is None else len(self._environment.guards)

    def _counterexample(self, guard: Any) -> dict[Any, int] | None:
        """Sizes that the exported program takes for which a guard is false."""
        symbols = sorted(guard.free_symbols, key=str)
        if any(s not in self._ranges for s in symbols):
            return None  # a number read at run time: torch's own checks are kept in the program
        for values in self._samples(symbols):
            if _holds(guard, values) is False and self._takes(values):
                return values
        return None

    def _takes(self, values: Mapping[Any, int]) -> bool:
        """Whether no constraint over these symbols alone refuses the sizes."""
        sizes = {str(self._symbols.dims[s]): value for s, value in values.items() if s in self._symbols.dims}
        known = (c for c in self._constraints if sizes.keys() >= set(c.symbols))
        return all(c.holds(sizes) for c in known)

    def _samples(self, symbols: list[Any]) -> Iterator[dict[Any, int]]:
        limits = []
        for symbol in symbols:
            low = max(
                int(self._ranges[symbol].lower), 2
            )  # torch's rules hold for a size of 1 if they do for others
            upper = self._ranges[symbol].upper
            limits.append((low, low + _WIDE if str(upper) in ("int_oo", "oo") else max(low, int(upper))))
        choose = random.Random(0)
        yield {s: low for s, (low, _) in zip(symbols, limits, strict=True)}
        yield {s: high for s, (_, high) in zip(symbols, limits, strict=True)}
        for number in range(_SAMPLES):
            wide = _WIDE if number % 2 else 64  # small sizes decide most conditions
            yield {
                s: choose.randint(low, min(high, low + wide))
                for s, (low, high) in zip(symbols, limits, strict=True)
            }


def _holds(condition: Any, values: Mapping[Any, int]) -> bool | None:
    """The condition for these sizes; None where it has no truth value."""
    value = condition.xreplace({s: sympy.Integer(v) for s, v in values.items()})
    value = value.doit() if hasattr(value, "doit") else value
    return bool(value) if value in (sympy.true, sympy.false, True, False) else None


def _names(program: torch.export.ExportedProgram) -> dict[Any, str]:
    """Symbols of sizes as the user knows them: ``x.shape[2]``."""
    names: dict[Any, str] = {}
    for node in program.graph.nodes:
        value = node.meta.get("val")
        if node.op == "placeholder" and isinstance(value, torch.Tensor):
            for axis, size in enumerate(value.shape):
                if isinstance(size, torch.SymInt) and size.node.expr.is_Symbol:
                    names.setdefault(size.node.expr, f"{node.name}.shape[{axis}]")
    return names
