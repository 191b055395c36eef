"""Chunking: how a large batch is split into calls, and which rows of the outputs each of them fills."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from mansard import dims
from mansard.dims import Dim, DimLike
from mansard.errors import InputError
from mansard.plan.plan import TensorSpec
from mansard.runtime.memory.output_pool import OutputPool
from mansard.runtime.memory.signature import Signature
from mansard.runtime.memory.tensors import Array, describe


@dataclass(frozen=True)
class Chunking:
    """The chunks of a large batch, one call each. A unit is what the batch dim counts, usually a row.

    ``inputs`` and ``outputs`` are the rows along axis 0 that each tensor has per unit; 0 for an input that
    every call receives whole. ``sizes`` are the units of each chunk.
    """

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    sizes: tuple[int, ...]

    @property
    def units(self) -> int:
        """The units of all chunks."""
        return sum(self.sizes)

    def split_inputs(self, arrays: Sequence[Array]) -> Iterator[list[Array]]:
        """The inputs of each chunk: views of the whole inputs."""
        return self._views(arrays, self.inputs)

    def split_outputs(self, results: Sequence[Array]) -> Iterator[list[Array]]:
        """The outputs of each chunk: views of the whole outputs."""
        return self._views(results, self.outputs)

    def _views(self, arrays: Sequence[Array], rows: Sequence[int]) -> Iterator[list[Array]]:
        start = 0
        for size in self.sizes:
            end = start + size
            yield [a[start * k : end * k] if k else a for a, k in zip(arrays, rows, strict=True)]
            start = end


def plan_chunks(
    signature: Signature,
    outputs: Sequence[TensorSpec],
    arrays: Sequence[Array],
    size: int | None,
    in_flight: int,
) -> Chunking:
    """Split ``arrays`` into chunks of ``size`` units; by default into ``in_flight`` chunks, or more where
    those would be larger than the model takes.

    The batch dim is the one symbol in the first axes of inputs; without such a symbol every chunk has
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
        return _fixed_chunks(signature.inputs, outputs, arrays, size)
    rows_in = tuple(_rows(spec, symbol) for spec in signature.inputs)
    rows_out = tuple(_rows(spec, symbol, required=True) for spec in outputs)
    units = _units(signature.inputs, arrays, rows_in)
    return Chunking(rows_in, rows_out, _sizes(units, symbol, size, in_flight))


def allocate_outputs(
    outputs: Sequence[TensorSpec], chunking: Chunking, sizes: Mapping[str, int], pool: OutputPool
) -> list[Array]:
    """Arrays for the joined outputs of all chunks; ``sizes`` are the dims of one of them."""
    arrays = []
    for spec, rows in zip(outputs, chunking.outputs, strict=True):
        shape = (rows * chunking.units, *(dims.evaluate(d, sizes) for d in spec.shape[1:]))
        arrays.append(pool.array(shape, spec.dtype.numpy))
    return arrays


def _batch_symbol(signature: Signature) -> Dim | None:
    by_name: dict[str, tuple[Dim, str]] = {}
    for spec in signature.inputs:
        for symbol in dims.to_expr(spec.shape[0]).symbols() if spec.shape else ():
            by_name.setdefault(symbol.name, (symbol, spec.name))
    if len(by_name) > 1:
        named = ", ".join(f"{name!r} of {where!r}" for name, (_, where) in sorted(by_name.items()))
        raise InputError(f"the inputs have no common batch axis: their first dims are {named}")
    return next((symbol for symbol, _ in by_name.values()), None)


def _rows(spec: TensorSpec, symbol: Dim, required: bool = False) -> int:
    """The rows of a tensor per unit of the batch dim; 0 where it does not depend on it and need not."""
    depends = [symbol in dims.to_expr(axis).symbols() for axis in spec.shape]
    if not required and not any(depends):
        return 0
    rows = _multiple(spec.shape[0], symbol) if spec.shape else None
    if rows is None or any(depends[1:]):
        raise InputError(
            f"{describe(spec)} cannot be split along its first axis by the batch dim {symbol.name!r}"
        )
    return rows


def _multiple(value: DimLike, symbol: Dim) -> int | None:
    """k if the value is k times the symbol, else None."""
    if isinstance(value, int) or value.symbols() != {symbol}:
        return None
    times = dims.evaluate(value, {symbol.name: 1})
    return times if times > 0 and dims.mul(times, dims.symbol(symbol)) == value else None


def _units(specs: Sequence[TensorSpec], arrays: Sequence[Array], rows: Sequence[int]) -> int:
    """The units of the inputs, which must agree."""
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


def _fixed_chunks(
    specs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], arrays: Sequence[Array], size: int | None
) -> Chunking:
    """Chunks of the batch size that the model was compiled for."""
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
    return Chunking(rows, (batch,) * len(outputs), (1,) * _units(specs, arrays, rows))


def _sizes(units: int, symbol: Dim, size: int | None, in_flight: int) -> tuple[int, ...]:
    """The units of each chunk: as many of equal size as possible, since each size is recorded once."""
    step, lower = symbol.multiple, -(-symbol.min // symbol.multiple) * symbol.multiple
    upper = symbol.max // step * step
    if size is None:
        even = -(-units // in_flight)
        size = max(lower, min(upper, -(-even // step) * step), 1)
    symbol.check(size, "size")
    if size < 1:
        raise InputError(f"size={size}: a call takes at least one")
    whole, rest = divmod(units, size)
    sizes = [size] * whole
    if rest and rest < symbol.min and sizes:  # too few for a call: taken from the last whole chunk
        sizes[-1], rest = size + rest - lower, lower
    return (*sizes, rest) if rest else tuple(sizes)
