"""How a large batch is cut into calls, and where the rows of each of their outputs go."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from mansard import dims
from mansard.dims import Dim, DimLike
from mansard.errors import InputError
from mansard.plan.plan import TensorSpec
from mansard.runtime.memory.output_pool import Landings
from mansard.runtime.memory.tensors import Array, Signature, describe


@dataclass(frozen=True)
class Cut:
    """The calls of a large batch. A unit is what the batch dim counts: one row, as a rule.

    ``inputs`` and ``outputs`` are the rows along axis 0 that each tensor has for a unit; 0 for an input that
    every call gets whole. ``sizes`` are the units of each call.
    """

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    sizes: tuple[int, ...]

    @property
    def units(self) -> int:
        """Of all calls together."""
        return sum(self.sizes)

    def given(self, arrays: Sequence[Array]) -> Iterator[list[Array]]:
        """The inputs of each call: views of whole inputs."""
        return self._views(arrays, self.inputs)

    def taken(self, results: Sequence[Array]) -> Iterator[list[Array]]:
        """Where the outputs of each call go: views of whole outputs."""
        return self._views(results, self.outputs)

    def _views(self, arrays: Sequence[Array], rows: Sequence[int]) -> Iterator[list[Array]]:
        start = 0
        for size in self.sizes:
            end = start + size
            yield [a[start * k : end * k] if k else a for a, k in zip(arrays, rows, strict=True)]
            start = end


def cut(
    signature: Signature,
    outputs: Sequence[TensorSpec],
    arrays: Sequence[Array],
    size: int | None,
    in_flight: int,
) -> Cut:
    """How to cut ``arrays`` into calls of ``size`` units; by default ``in_flight`` calls, or more where those
    would be larger than the model takes.

    The batch dim is the one symbol that counts rows (axis 0) of inputs; without such a symbol calls take
    as many rows as the model was compiled for. Raises InputError, naming the tensor, when inputs or outputs
    have no batch axis in common, and for sizes outside the contract.
    """
    if not outputs:
        raise InputError("the model has no outputs to join")
    for spec, array in zip(signature.inputs, arrays, strict=True):
        if array.ndim != len(spec.shape):
            raise InputError(f"input {spec.name!r} has rank {array.ndim}; the model takes {describe(spec)}")
    symbol = _batch_symbol(signature)
    if symbol is None:
        return _cut_fixed(signature.inputs, outputs, arrays, size)
    rows_in = tuple(_rows(spec, symbol) for spec in signature.inputs)
    rows_out = tuple(_rows(spec, symbol, joined=True) for spec in outputs)
    units = _units(signature.inputs, arrays, rows_in)
    return Cut(rows_in, rows_out, _sizes(units, symbol, size, in_flight))


def joined(outputs: Sequence[TensorSpec], plan: Cut, sizes: Mapping[str, int], pool: Landings) -> list[Array]:
    """Arrays for the outputs of all calls; ``sizes`` are the dims of one of them."""
    return [
        pool.array((rows * plan.units, *(dims.evaluate(d, sizes) for d in spec.shape[1:])), spec.dtype.numpy)
        for spec, rows in zip(outputs, plan.outputs, strict=True)
    ]


def _batch_symbol(signature: Signature) -> Dim | None:
    found: dict[str, tuple[Dim, str]] = {}
    for spec in signature.inputs:
        for symbol in dims.to_expr(spec.shape[0]).symbols() if spec.shape else ():
            found.setdefault(symbol.name, (symbol, spec.name))
    if len(found) > 1:
        named = ", ".join(f"{name!r} of {where!r}" for name, (_, where) in sorted(found.items()))
        raise InputError(f"the inputs have no common batch axis: their first dims are {named}")
    return next((symbol for symbol, _ in found.values()), None)


def _rows(spec: TensorSpec, symbol: Dim, joined: bool = False) -> int:
    """How many rows a tensor has for each unit of the batch dim; 0: it does not depend on it."""
    depends = [symbol in dims.to_expr(axis).symbols() for axis in spec.shape]
    if not joined and not any(depends):
        return 0
    rows = _multiple(spec.shape[0], symbol) if spec.shape else None
    if rows is None or any(depends[1:]):
        raise InputError(
            f"{describe(spec)} cannot be cut along its first axis by the batch dim {symbol.name!r}"
        )
    return rows


def _multiple(value: DimLike, symbol: Dim) -> int | None:
    """k where the value is k times the symbol, else None."""
    if isinstance(value, int) or value.symbols() != {symbol}:
        return None
    times = dims.evaluate(value, {symbol.name: 1})
    return times if times > 0 and dims.mul(times, dims.symbol(symbol)) == value else None


def _units(specs: Sequence[TensorSpec], arrays: Sequence[Array], rows: Sequence[int]) -> int:
    """How many units the inputs have, which must agree."""
    counts: dict[str, int] = {}
    for spec, array, each in zip(specs, arrays, rows, strict=True):
        if each and array.shape[0] % each:
            raise InputError(f"input {spec.name!r} has {array.shape[0]} rows, not a multiple of {each}")
        if each:
            counts[spec.name] = array.shape[0] // each
    if len(set(counts.values())) > 1:
        raise InputError(
            f"inputs with batches of different sizes: {', '.join(f'{n}: {c}' for n, c in counts.items())}"
        )
    units = next(iter(counts.values()))
    if not units:
        raise InputError("the batch is empty")
    return units


def _cut_fixed(
    specs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], arrays: Sequence[Array], size: int | None
) -> Cut:
    """Every call takes the batch that the model was compiled for."""
    larger = [
        (spec, array)
        for spec, array in zip(specs, arrays, strict=True)
        if spec.shape and array.shape[0] != spec.shape[0]
    ] or [(spec, array) for spec, array in zip(specs, arrays, strict=True) if spec.shape][:1]
    if not larger:
        raise InputError("the inputs have no common batch axis: none has an axis at all")
    first, array = larger[0]
    batch = dims.evaluate(first.shape[0], {})
    for spec, _ in larger:
        if spec.shape[0] != batch:
            raise InputError(f"the inputs have no common batch axis: {describe(first)}, {describe(spec)}")
    for spec in outputs:
        if not spec.shape or spec.shape[0] != batch:
            raise InputError(
                f"output {describe(spec)} cannot be joined: its first axis is not the batch of {batch}"
            )
    if size not in (None, batch):
        raise InputError(f"size={size}: the model was compiled for calls of {batch}")
    if batch == 0 or array.shape[0] % batch:
        raise InputError(
            f"input {first.name!r} has {array.shape[0]} rows; each call takes {batch}, no more and no less"
        )
    rows = tuple(batch if any(spec is other for other, _ in larger) else 0 for spec in specs)
    return Cut(rows, (batch,) * len(outputs), (1,) * _units(specs, arrays, rows))


def _sizes(units: int, symbol: Dim, size: int | None, in_flight: int) -> tuple[int, ...]:
    """The units of each call: as many of one size as there can be, since each size is recorded once."""
    step, least = symbol.multiple, -(-symbol.min // symbol.multiple) * symbol.multiple
    most = symbol.max // step * step
    if size is None:
        even = -(-units // in_flight)
        size = max(least, min(most, -(-even // step) * step), 1)
    symbol.check(size, "size")
    if size < 1:
        raise InputError(f"size={size}: a call takes at least one")
    whole, rest = divmod(units, size)
    sizes = [size] * whole
    if rest and rest < symbol.min and sizes:  # too few for a call: the last whole one gives some of its own
        sizes[-1], rest = size + rest - least, least
    return (*sizes, rest) if rest else tuple(sizes)
