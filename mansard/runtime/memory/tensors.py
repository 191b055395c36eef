"""The user's tensors: NumPy, PyTorch and DLPack in, the same kind out, checked and without copies."""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mansard import dims
from mansard.dims import Dim, DimLike, Expr
from mansard.dtypes import DType
from mansard.errors import InputError, ShapeContractError
from mansard.plan.plan import TensorSpec

Array = npt.NDArray[np.generic]

SEEN_SHAPES = 64
"""How many sets of input shapes a signature remembers as good."""
_DLPACK_CPU = 1
# Torch types that NumPy lacks: the integer type of the same size through which they pass.
_TORCH_THROUGH = {"bfloat16": ("int16", DType.BF16), "float8_e4m3fn": ("uint8", DType.F8)}


@dataclass
class Prepared:
    """A call's inputs: contiguous arrays in the order of the signature, and the symbols' values."""

    arrays: tuple[Array, ...]
    dims: Mapping[str, int]
    torch: bool
    """Whether the caller passed torch tensors, and gets torch tensors back."""
    copied: tuple[int, int] = (0, 0)
    """How many inputs had to be copied to be contiguous, and their bytes."""


class Signature:
    """The inputs of a model: reads a call's arguments and holds them to the contract."""

    def __init__(self, inputs: Sequence[TensorSpec], symbols: Sequence[Dim]) -> None:
        self.inputs = tuple(inputs)
        self.symbols = {dim.name: dim for dim in symbols}
        self._names = [spec.name for spec in self.inputs]
        self._axes = [tuple(map(_axis, spec.shape)) for spec in self.inputs]
        self._dtypes = [spec.dtype.numpy for spec in self.inputs if spec.dtype.bits >= 8]
        self._seen: dict[tuple[tuple[int, ...], ...], Mapping[str, int]] = {}
        for spec in self.inputs:
            if spec.dtype.bits < 8:
                raise InputError(f"input {spec.name!r}: packed {spec.dtype.value} inputs are not supported")

    def __str__(self) -> str:
        return ", ".join(describe(spec) for spec in self.inputs) or "no inputs"

    def arrays(self, args: Sequence[object], named: Mapping[str, object]) -> tuple[list[Array], bool]:
        """A call's arguments as arrays in order, of whatever shapes; and whether torch tensors were given.

        Raises InputError (number, names, kinds, element types).
        """
        values = self._in_order(args, named)
        arrays = [to_array(value, spec) for spec, value in zip(self.inputs, values, strict=True)]
        return arrays, any(map(is_torch, values))

    def prepare(self, args: Sequence[object], named: Mapping[str, object]) -> Prepared:
        """Check a call's arguments and bring them into one form.

        Raises InputError (number, names, kinds, element types, rank) and ShapeContractError (dims);
        both name the input and say what the model expects.
        """
        return self._known(args, named) or self._checked(args, named)

    def _known(self, args: Sequence[object], named: Mapping[str, object]) -> Prepared | None:
        """The short way: NumPy arrays that can be read in place, of shapes that were checked before."""
        if named or len(args) != len(self._dtypes):
            return None
        for value, dtype in zip(args, self._dtypes, strict=True):
            if type(value) is not np.ndarray or value.dtype is not dtype:
                return None
            flags = value.flags
            if not (flags.c_contiguous and flags.aligned):
                return None
        arrays: tuple[Array, ...] = tuple(args)  # type: ignore[arg-type]  # all are, as just seen
        sizes = self._seen.get(tuple([array.shape for array in arrays]))
        return None if sizes is None else Prepared(arrays, sizes, torch=False)

    def _checked(self, args: Sequence[object], named: Mapping[str, object]) -> Prepared:
        values = self._in_order(args, named)
        arrays = [to_array(value, spec) for spec, value in zip(self.inputs, values, strict=True)]
        shapes = tuple([array.shape for array in arrays])
        sizes = self._seen.get(shapes)
        if sizes is None:
            sizes = self._bind(arrays)
            if len(self._seen) < SEEN_SHAPES:
                self._seen[shapes] = sizes
        ready = [contiguous(array) for array in arrays]
        copied = [b.nbytes for a, b in zip(arrays, ready, strict=True) if a is not b]
        return Prepared(tuple(ready), sizes, any(map(is_torch, values)), (len(copied), sum(copied)))

    def _in_order(self, args: Sequence[object], named: Mapping[str, object]) -> list[object]:
        if len(args) > len(self._names):
            raise InputError(f"{len(args)} inputs were given; the model takes {len(self._names)}: {self}")
        values = dict(zip(self._names, args, strict=False))
        for name, value in named.items():
            if name not in self._names:
                raise InputError(f"the model has no input {name!r}; its inputs: {self}")
            if name in values:
                raise InputError(f"input {name!r} is given twice, by position and by name")
            values[name] = value
        missing = [name for name in self._names if name not in values]
        if missing:
            raise InputError(f"missing inputs: {', '.join(missing)}; the model takes {self}")
        return [values[name] for name in self._names]

    def _bind(self, arrays: Sequence[Array]) -> dict[str, int]:
        """The value of every symbol, from the shapes; checks every dim of every input."""
        sizes: dict[str, int] = {}
        origin: dict[str, str] = {}
        late: list[tuple[str, int, DimLike]] = []
        for spec, axes, array in zip(self.inputs, self._axes, arrays, strict=True):
            if array.ndim != len(spec.shape):
                raise InputError(
                    f"input {spec.name!r} has rank {array.ndim} (shape {list(array.shape)}); "
                    f"the model takes {describe(spec)}"
                )
            for axis, (expected, actual) in enumerate(zip(axes, array.shape, strict=True)):
                if isinstance(expected, int):
                    if actual != expected:
                        raise ShapeContractError(
                            f"input {spec.name!r}, axis {axis} is {actual}; "
                            f"the model was compiled for {expected}"
                        )
                    continue
                where = f"input {spec.name!r}, axis {axis}"
                if isinstance(expected, Dim):
                    self._bind_symbol(expected, actual, where, sizes, origin)
                else:
                    late.append((where, actual, expected))
        for where, actual, expected in late:
            self._bind_expression(expected, actual, where, sizes, origin)
        return sizes

    def _bind_symbol(
        self, symbol: Dim, actual: int, where: str, sizes: dict[str, int], origin: dict[str, str]
    ) -> None:
        known = sizes.get(symbol.name)
        if known is None:
            symbol.check(actual, where)
            sizes[symbol.name], origin[symbol.name] = actual, where
        elif known != actual:
            raise ShapeContractError(
                f"{where}: dim {symbol.name!r} is {actual}, but it is {known} at {origin[symbol.name]}"
            )

    def _bind_expression(
        self, expected: DimLike, actual: int, where: str, sizes: dict[str, int], origin: dict[str, str]
    ) -> None:
        unknown = sorted(s.name for s in dims.to_expr(expected).symbols() if s.name not in sizes)
        if len(unknown) == 1:
            value = _solve(expected, unknown[0], actual, sizes)
            if value is None:
                raise ShapeContractError(f"{where} is {actual}; no {unknown[0]!r} makes {expected} that")
            self._bind_symbol(self.symbols[unknown[0]], value, where, sizes, origin)
        elif unknown:
            raise InputError(f"{where}: the shapes do not tell {', '.join(unknown)} of {expected}")
        found = dims.evaluate(expected, sizes)
        if found != actual:
            at = ", ".join(
                f"{n}={sizes[n]}" for n in sorted(s.name for s in dims.to_expr(expected).symbols())
            )
            raise ShapeContractError(f"{where} is {actual}; the model needs {expected} = {found} ({at})")


def describe(spec: TensorSpec) -> str:
    """An input or output for people: ``x: f32[n, 3]``."""
    return f"{spec.name}: {spec.dtype.value}[{', '.join(str(d) for d in spec.shape)}]"


def _axis(value: DimLike) -> int | Dim | Expr:
    """What an axis must be: a number, a symbol of its own, or an expression."""
    if isinstance(value, int):
        return value
    symbols = tuple(value.symbols())
    return symbols[0] if len(symbols) == 1 and dims.symbol(symbols[0]) == value else value


def _solve(expected: DimLike, name: str, actual: int, sizes: Mapping[str, int]) -> int | None:
    """The value of ``name`` for which a linear expression is ``actual``."""
    at = [dims.evaluate(expected, {**sizes, name: value}) for value in (0, 1, 2)]
    slope = at[1] - at[0]
    if slope == 0 or at[2] - at[1] != slope or (actual - at[0]) % slope:
        return None
    return (actual - at[0]) // slope


# Kinds of tensors -----------------------------------------------------------------------------------


def is_torch(value: object) -> bool:
    """Whether a value is a torch tensor; never imports torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def to_array(value: object, spec: TensorSpec) -> Array:
    """A tensor of any known kind as a NumPy array over the same memory; raises InputError."""
    where = f"input {spec.name!r}"
    if isinstance(value, (np.ndarray, np.generic)):
        array: Array = np.asarray(value)
    elif is_torch(value):
        array = _from_torch(value, where)
    elif hasattr(value, "__dlpack__"):
        array = _from_dlpack(value, where)
    elif isinstance(value, (bool, int, float)) and not spec.shape:
        array = _from_scalar(value, spec, where)
    else:
        raise InputError(
            f"{where} is a {type(value).__name__}; the model takes {describe(spec)} as a NumPy array, "
            "a torch tensor or any object with __dlpack__"
        )
    if array.dtype.newbyteorder("=") != spec.dtype.numpy:
        raise InputError(
            f"{where} has element type {array.dtype.name}; the model takes {spec.dtype.numpy.name}"
        )
    return array


def _from_scalar(value: bool | int | float, spec: TensorSpec, where: str) -> Array:
    fits = isinstance(value, bool) if spec.dtype is DType.BOOL else not isinstance(value, bool)
    if not fits or (spec.dtype.is_int and isinstance(value, float)):
        raise InputError(f"{where} is the {type(value).__name__} {value}; the model takes {describe(spec)}")
    try:
        return np.asarray(value, dtype=spec.dtype.numpy)
    except OverflowError as error:
        raise InputError(f"{where}: {value} does not fit into {spec.dtype.value}") from error


def _from_torch(value: Any, where: str) -> Array:
    import torch  # already imported: value is one of its tensors

    if value.device.type != "cpu":
        raise InputError(f"{where} is a torch tensor on {value.device}; pass it as tensor.cpu()")
    if value.layout is not torch.strided:
        raise InputError(f"{where} is a sparse torch tensor; pass it as tensor.to_dense()")
    name = str(value.dtype).removeprefix("torch.")
    tensor = value.detach()
    try:
        if name in _TORCH_THROUGH:
            carrier, dtype = _TORCH_THROUGH[name]
            bits: Array = tensor.view(getattr(torch, carrier)).numpy()
            return bits.view(dtype.numpy)
        array: Array = tensor.resolve_conj().resolve_neg().numpy()
    except (TypeError, RuntimeError) as error:
        raise InputError(f"{where}: torch tensor of {name} cannot be read: {error}") from error
    return array


def _from_dlpack(value: Any, where: str) -> Array:
    try:
        kind, _ = value.__dlpack_device__()
        if kind != _DLPACK_CPU:
            raise InputError(f"{where} is not in host memory (DLPack device type {kind})")
        array: Array = np.from_dlpack(value)
    except (TypeError, ValueError, RuntimeError, BufferError, AttributeError) as error:
        raise InputError(
            f"{where}: a {type(value).__name__} cannot be read through DLPack: {error}"
        ) from error
    return array


def contiguous(array: Array) -> Array:
    """The array itself when kernels can read it in place, else a copy."""
    flags = array.flags
    if flags.c_contiguous and flags.aligned and array.dtype.isnative:
        return array
    return np.array(array, dtype=array.dtype.newbyteorder("="), order="C", copy=True)


def to_torch(array: Array) -> object:
    """A torch tensor over the array's memory."""
    import torch  # already imported: the caller passed torch tensors

    through = _through(array.dtype)
    if through is None:
        return torch.from_numpy(array)
    name, carrier = through
    return torch.from_numpy(array.view(carrier)).view(getattr(torch, name))


@functools.cache
def _through(found: np.dtype[np.generic]) -> tuple[str, str] | None:
    """The torch type of an element type that NumPy lacks, and the integer type it passes through."""
    types = _TORCH_THROUGH.items()
    return next(((name, carrier) for name, (carrier, dtype) in types if found == dtype.numpy), None)


def empty(shape: tuple[int, ...], dtype: np.dtype[np.generic], alignment: int = 1) -> Array:
    """A new array whose first byte lies at a multiple of ``alignment``."""
    if alignment <= 16:  # what NumPy gives anyway
        return np.empty(shape, dtype=dtype)
    size = math.prod(shape) * dtype.itemsize
    raw = np.empty(size + alignment, dtype=np.uint8)
    start = -raw.ctypes.data % alignment
    return raw[start : start + size].view(dtype).reshape(shape)
