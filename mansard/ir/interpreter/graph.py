"""The reference interpreter: runs a Graph op by op in NumPy (`Op.evaluate`). Tests compare all else with it.

Reductions of f16, bf16 and f8 accumulate in f32, those of f32 in f32 or better. Where IEEE
arithmetic leaves room (order of sums, the sign of a zero from min or max) a kernel may differ.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any

import numpy as np

from mansard import dims
from mansard.dims import Dim, DimLike
from mansard.dtypes import from_numpy
from mansard.errors import InputError, VerificationError
from mansard.ir.graph import Graph
from mansard.ir.interpreter.scalar import Array
from mansard.ir.ops import Op
from mansard.ir.types import Constant, TensorType, Value
from mansard.plan.constraints import check_constraints


def interpret(
    graph: Graph,
    inputs: Mapping[str, Any] | Sequence[Any],
    states: MutableMapping[str, Array] | None = None,
    parameters: Mapping[str, int] | None = None,
) -> list[Array]:
    """Run ``graph`` and return its outputs in order.

    ``inputs`` are arrays by input name or in order. ``states`` maps state names (of the value on
    entry) to arrays and is updated in place with their final values; a state that is missing starts
    from its initial value, or zeros. ``parameters`` gives the graph's parameters their values.

    Raises InputError for inputs that do not fit, ShapeContractError for sizes outside the contract
    and InputError with the message of an `Assert` that fails.
    """
    arrays = _named(graph, inputs)
    states = {} if states is None else states
    held = {s.before: states[s.before.name] for s in graph.states if s.before.name in states}
    given = {**arrays, **held}
    symbols = bind({v.name: v.type for v in given}, {v.name: a for v, a in given.items()})
    symbols.update(parameters or {})
    check_constraints(graph.constraints, symbols, {})
    values: dict[Value, Array] = dict(arrays)
    for state in graph.states:
        values[state.before] = _initial(state.before, state.initial, held, symbols)
    with np.errstate(all="ignore"):
        _run_ops(graph, values, symbols)
    for state in graph.states:
        states[state.before.name] = np.array(_read(graph, values, state.after))
    return [np.array(_read(graph, values, v)) for v in graph.outputs]


def run_op(op: Op, operands: Sequence[Array], symbols: Mapping[str, int] | None = None) -> list[Array]:
    """The results of one op for operand arrays of its types. Raises VerificationError when a result
    has another shape than the op says."""
    known = symbols or {}
    with np.errstate(all="ignore"):
        results = op.evaluate(operands, known)
    for value, array in zip(op.outputs, results, strict=True):
        if array.shape != value.type.concrete(known) or array.dtype != value.type.dtype.numpy:
            raise VerificationError(
                f"op {op.name} ({value}): gave {array.dtype}{list(array.shape)}, not {value.type}"
            )
    return results


def load(value: Value, constant: Constant) -> Array:
    """The data of a constant. Raises VerificationError when it does not have the value's type."""
    array = np.asarray(constant.load())
    if array.shape != value.type.shape or array.dtype != value.type.dtype.numpy:
        raise VerificationError(
            f"constant {value} ({constant.key}) holds {array.dtype}{list(array.shape)}, not {value.type}"
        )
    return array


# Binding ------------------------------------------------------------------------------------
def _named(graph: Graph, inputs: Mapping[str, Any] | Sequence[Any]) -> dict[Value, Array]:
    names = [v.name for v in graph.inputs]
    if isinstance(inputs, Mapping):
        if set(inputs) != set(names):
            raise InputError(f"inputs are {sorted(inputs)}; the graph takes {names}")
        return {v: np.asarray(inputs[v.name]) for v in graph.inputs}
    if len(inputs) != len(names):
        raise InputError(f"{len(inputs)} inputs given; the graph takes {len(names)}: {names}")
    return {v: np.asarray(a) for v, a in zip(graph.inputs, inputs, strict=True)}


def bind(types: Mapping[str, TensorType], arrays: Mapping[str, Array]) -> dict[str, int]:
    """The value of every symbol, from the shapes of arrays that must have the types given.

    Raises InputError for an array of another dtype, rank or shape, ShapeContractError for a symbol
    outside its contract.
    """
    for name, t in types.items():
        array = arrays[name]
        if array.dtype != t.dtype.numpy:
            raise InputError(
                f"{name}: has element type {_dtype_name(array)}, the graph takes {t.dtype.value}"
            )
        if array.ndim != t.rank:
            raise InputError(f"{name}: has shape {array.shape}, the graph takes {t}")
    symbols: dict[str, int] = {}
    pairs = [(n, d, size) for n, t in types.items() for d, size in zip(t.shape, arrays[n].shape, strict=True)]
    # Plain symbols first, so that expressions over several symbols find most of them bound.
    for name, d, size in sorted(pairs, key=lambda p: _complexity(p[1])):
        for s, value in _solve(d, size, symbols):
            s.check(value, name)
            symbols[s.name] = value
    for name, d, size in pairs:
        if dims.evaluate(d, symbols) != size:
            what = f"{d} (= {dims.evaluate(d, symbols)})" if not isinstance(d, int) else str(d)
            raise InputError(f"{name}: has a dim of {size} where the graph takes {what}")
    return symbols


def _dtype_name(array: Array) -> str:
    try:
        return from_numpy(array.dtype).value
    except InputError:
        return str(array.dtype)


def _complexity(d: DimLike) -> int:
    """0 for an int, 1 for a symbol, more for what has to be solved."""
    if isinstance(d, int):
        return 0
    is_symbol = all(d == dims.symbol(s) for s in d.symbols())
    return 1 if is_symbol else 1 + len(d.symbols())


def _solve(d: DimLike, size: int, known: Mapping[str, int]) -> list[tuple[Dim, int]]:
    """The one unknown symbol of ``a * symbol + b == size``, if ``d`` has that form."""
    if isinstance(d, int):
        return []
    unknown = [s for s in d.symbols() if s.name not in known]
    if not unknown:
        return []
    if len(unknown) > 1:
        raise InputError(f"dim {d} has several unknown symbols; bind them by dims of their own")
    s = unknown[0]
    at = [d.evaluate({**known, s.name: v}) for v in (0, 1, 2)]
    slope = at[1] - at[0]
    if slope == 0 or at[2] - at[1] != slope:
        raise InputError(f"dim {d} does not tell the value of {s.name!r}")
    if (size - at[0]) % slope:
        raise InputError(f"no whole {s.name!r} gives dim {d} the value {size}")
    return [(s, (size - at[0]) // slope)]


def _initial(
    value: Value, initial: Constant | None, held: Mapping[Value, Array], symbols: Mapping[str, int]
) -> Array:
    if value in held:
        return held[value]
    if initial is not None:
        return load(value, initial)
    return np.zeros(value.type.concrete(symbols), value.type.dtype.numpy)


# Running ------------------------------------------------------------------------------------
def _run_ops(graph: Graph, values: dict[Value, Array], symbols: Mapping[str, int]) -> None:
    """Run every op, dropping each value after its last use so that big models fit."""
    kept = graph.live_outs()
    last = {v: i for i, op in enumerate(graph.ops) for v in op.inputs if v not in kept}
    for number, op in enumerate(graph.ops):
        operands = [_read(graph, values, v) for v in op.inputs]
        values.update(zip(op.outputs, run_op(op, operands, symbols), strict=True))
        for v in op.inputs:
            if last.get(v) == number:
                values.pop(v, None)


def _read(graph: Graph, values: Mapping[Value, Array], value: Value) -> Array:
    if value in values:
        return values[value]
    return load(value, graph.constants[value])
