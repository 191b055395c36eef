"""The reference interpreter: what a Graph means, op by op in NumPy, and the oracle of every test.

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
from mansard.errors import InputError, UnsupportedOpError, VerificationError
from mansard.ir.combiners import UFUNCS, neutral
from mansard.ir.graph import Graph
from mansard.ir.interpreter import scalar as scalars
from mansard.ir.interpreter.generic import run_generic
from mansard.ir.interpreter.scalar import Array
from mansard.ir.ops import Assert, Attention, Concat, Generic, Op, Pad, Reshape, Scan, Scatter, Slice, Sort
from mansard.ir.types import Constant, TensorType, Value


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

    Raises InputError for inputs that do not fit, ShapeContractError for a dim outside its contract
    and InputError with the message of an `Assert` that fails.
    """
    arrays = _named(graph, inputs)
    states = {} if states is None else states
    held = {s.before: states[s.before.name] for s in graph.states if s.before.name in states}
    given = {**arrays, **held}
    symbols = bind({v.name: v.type for v in given}, {v.name: a for v, a in given.items()})
    symbols.update(parameters or {})
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
        results = _dispatch(op, operands, known)
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
    found: dict[str, int] = {}
    pairs = [(n, d, size) for n, t in types.items() for d, size in zip(t.shape, arrays[n].shape, strict=True)]
    # Plain symbols first, so that expressions over several symbols find most of them bound.
    for name, d, size in sorted(pairs, key=lambda p: _complexity(p[1])):
        for s, value in _solve(d, size, found):
            s.check(value, name)
            found[s.name] = value
    for name, d, size in pairs:
        if dims.evaluate(d, found) != size:
            what = f"{d} (= {dims.evaluate(d, found)})" if not isinstance(d, int) else str(d)
            raise InputError(f"{name}: has a dim of {size} where the graph takes {what}")
    return found


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


def _solve(d: DimLike, size: int, found: Mapping[str, int]) -> list[tuple[Dim, int]]:
    """The one unknown symbol of ``a * symbol + b == size``, if ``d`` has that form."""
    if isinstance(d, int):
        return []
    unknown = [s for s in d.symbols() if s.name not in found]
    if not unknown:
        return []
    if len(unknown) > 1:
        raise InputError(f"dim {d} has several unknown symbols; bind them by dims of their own")
    s = unknown[0]
    at = [d.evaluate({**found, s.name: v}) for v in (0, 1, 2)]
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


def _dispatch(op: Op, operands: Sequence[Array], symbols: Mapping[str, int]) -> list[Array]:
    match op:
        case Generic():
            return [run_generic(op, operands, symbols)]
        case Reshape():
            return [operands[0].reshape(op.output.type.concrete(symbols))]
        case Slice():
            return [_slice(op, operands[0], symbols)]
        case Concat():
            return [np.concatenate(operands, op.axis)]
        case Pad():
            return [_pad(op, operands[0], symbols)]
        case Scatter():
            return [_scatter(op, *operands)]
        case Sort():
            return _sort(op, operands[0])
        case Scan():
            return [_scan(op, operands[0])]
        case Attention():
            return [_attention(op, operands)]
        case Assert():
            if not operands[0].all():
                raise InputError(op.message)
            return []
        case _:
            raise UnsupportedOpError(op.name, str(op.location), "the reference interpreter has no rule")


def _slice(op: Slice, x: Array, symbols: Mapping[str, int]) -> Array:
    index = []
    for offset, stride, size, extent in zip(
        op.offsets, op.strides, op.output.type.concrete(symbols), x.shape, strict=True
    ):
        start = dims.evaluate(offset, symbols)
        last = start + (size - 1) * stride
        if size and not 0 <= start <= last < extent:
            raise VerificationError(f"op slice ({op.output}): reads {start} to {last} of a dim of {extent}")
        index.append(slice(start, last + 1, stride) if size else slice(0, 0))
    return x[tuple(index)]


def _pad(op: Pad, x: Array, symbols: Mapping[str, int]) -> Array:
    out = np.full(op.output.type.concrete(symbols), op.value, x.dtype)
    low = [dims.evaluate(n, symbols) for n in op.low]
    out[tuple(slice(n, n + size) for n, size in zip(low, x.shape, strict=True))] = x
    return out


def _scatter(op: Scatter, target: Array, indices: Array, updates: Array) -> Array:
    dtype = op.output.type.dtype
    bounds = np.array(target.shape[: indices.shape[1]], np.int64)
    inside = ((indices >= 0) & (indices < bounds)).all(axis=1)
    where = tuple(indices[inside].T)
    out = np.array(scalars.to_register(target, dtype))
    rows = scalars.to_register(updates[inside], dtype)
    if not where:  # zero columns: every row addresses the whole target
        where = (np.zeros(len(rows), np.int64),)
        out = out[None]
    if op.combiner is None:
        # NumPy keeps the last of repeated indices, which is the order the op states.
        out[where] = rows
    else:
        UFUNCS[op.combiner].at(out, where, rows)
    return scalars.to_storage(out.reshape(target.shape), dtype)


def _sort(op: Sort, x: Array) -> list[Array]:
    keys = scalars.to_register(x, op.inputs[0].type.dtype)
    if op.descending:
        # Reversing before and after keeps equal entries in their order.
        flipped = np.argsort(np.flip(keys, op.axis), axis=op.axis, kind="stable")
        order = keys.shape[op.axis] - 1 - np.flip(flipped, op.axis)
    else:
        order = np.argsort(keys, axis=op.axis, kind="stable")
    if op.limit is not None:
        order = np.take(order, np.arange(op.limit), axis=op.axis)
    order = order.astype(np.int64)
    return [np.take_along_axis(x, order, op.axis), order]


def _scan(op: Scan, x: Array) -> Array:
    dtype = op.output.type.dtype
    values = scalars.to_register(x, dtype)
    wide = np.float64 if values.dtype == np.float32 else values.dtype
    out = np.asarray(UFUNCS[op.combiner].accumulate(values, axis=op.axis, dtype=wide))
    if not op.inclusive and x.shape[op.axis]:
        first = np.full_like(np.take(out, [0], op.axis), neutral(op.combiner, dtype))
        out = np.concatenate([first, np.delete(out, -1, op.axis)], op.axis)
    return scalars.to_storage(out.astype(values.dtype), dtype)


def _attention(op: Attention, operands: Sequence[Array]) -> Array:
    dtype = op.output.type.dtype
    q, k, v = (scalars.to_register(a, dtype) for a in operands[:3])
    batch, heads, rows, _ = q.shape
    group = heads // k.shape[1]
    length = k.shape[2]
    mask = None
    if len(operands) == 4:
        mask = np.broadcast_to(operands[3], (batch, heads, rows, length))
    kept = np.arange(length) <= np.arange(rows)[:, None] if op.causal else None
    out = np.empty((batch, heads, rows, v.shape[3]), q.dtype)
    for b in range(batch):
        for h in range(heads):
            scores = q[b, h] @ k[b, h // group].T * q.dtype.type(op.scale)
            row_mask = None if mask is None else mask[b, h]
            out[b, h] = _softmax(scores, row_mask, kept) @ v[b, h // group]
    return scalars.to_storage(out, dtype)


def _softmax(scores: Array, mask: Array | None, kept: Array | None) -> Array:
    """Row softmax of masked scores; rows with nothing kept are zero."""
    if mask is not None and mask.dtype != np.bool_:
        scores = scores + mask.astype(scores.dtype)
    elif mask is not None:
        kept = mask if kept is None else kept & mask
    if kept is not None:
        scores = np.where(kept, scores, -np.inf)
    if scores.shape[1] == 0:
        return scores
    shifted = np.exp(scores - scores.max(axis=1, keepdims=True))
    probabilities = shifted / shifted.sum(axis=1, keepdims=True)
    if kept is not None:
        probabilities = np.where(kept.any(axis=1, keepdims=True), probabilities, 0)
    return np.asarray(probabilities, scores.dtype)
