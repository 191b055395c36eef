"""The identity of a dispatch: equal layers share one kernel."""

from __future__ import annotations

import dataclasses
from typing import Any

from mansard.ir.types import Value
from mansard.passes.dispatch import Dispatch

_SKIPPED = frozenset({"inputs", "outputs", "location"})


def dispatch_key(dispatch: Dispatch) -> str:
    """A text equal for two dispatches exactly when one kernel serves both.

    Values are numbered in order of appearance; names and source locations do not count.
    """
    numbers: dict[Value, int] = {}

    def number(value: Value) -> str:
        known = value in numbers
        place = numbers.setdefault(value, len(numbers))
        return f"%{place}" if known else f"%{place}:{value.type}"

    parts = [f"[{', '.join(str(d) for d in dispatch.domain)}]"]
    parts.append(" ".join(number(v) for v in dispatch.inputs))
    parts.append(" ".join(number(v) for v in dispatch.outputs))
    parts.append(" ".join(sorted(number(v) for v in dispatch.packable)))
    for op in dispatch.ops:
        attributes: dict[str, Any] = {
            f.name: getattr(op, f.name) for f in dataclasses.fields(op) if f.name not in _SKIPPED
        }
        operands = " ".join(number(v) for v in op.inputs)
        results = " ".join(number(v) for v in op.outputs)
        parts.append(f"{results} = {op.name} {operands} {attributes!r}")
    return "\n".join(parts)
