"""Imports a function of linalg-on-tensors MLIR into a Graph, op by op.

A table maps op names to handlers; an op that is not in it raises `UnsupportedOpError`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mansard import dims, dtypes
from mansard.dims import DimLike, Expr
from mansard.dtypes import DType
from mansard.errors import ImportModelError, UnsupportedOpError
from mansard.frontends.linalg import mlir
from mansard.frontends.linalg.arith import RULES
from mansard.frontends.linalg.body import Body, row_major
from mansard.frontends.linalg.scalars import HOST, Space, as_dim, zero
from mansard.frontends.linalg.values import Elements, Empty, Entry, Load, Splat, TensorEntry
from mansard.ir.graph import GraphBuilder
from mansard.ir.ops import Op, Reshape
from mansard.ir.scalar import Const, Scalar
from mansard.ir.shapes import same_shape
from mansard.ir.types import Constant, Location, Value

Handler = Callable[["Importer", Any], None]


@dataclass(frozen=True)
class Argument:
    """The description of an argument of the imported function.

    With ``constant`` it is a constant, with ``state`` a buffer that persists across calls (initialised with
    ``constant``), otherwise an input. ``dtype`` may differ from the MLIR type in signedness only.
    """

    name: str
    shape: tuple[DimLike, ...]
    dtype: DType
    constant: Constant | None = None
    state: bool = False


class Unify(Exception):  # noqa: N818  (a request to restart, not an error)
    """Two automatic dim symbols must be equal: restart the import with ``name`` replaced by ``value``."""

    def __init__(self, name: str, value: DimLike) -> None:
        self.name, self.value = name, value
        super().__init__(name)


class Builder(GraphBuilder):
    """A GraphBuilder that records producers and merges chains of reshapes."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.producers: dict[Value, Op] = {}

    def append(self, op: Op) -> Value:
        """Append an op and record it as the producer of its results."""
        for value in op.outputs:
            self.producers[value] = op
        return super().append(op)

    def reshape(self, x: Value, shape: Sequence[DimLike], name: str = "reshape") -> Value:
        """Append one Reshape of the source of a chain of reshapes, or nothing if the shape is unchanged."""
        producer = self.producers.get(x)
        if isinstance(producer, Reshape):
            x = producer.inputs[0]
        if same_shape(x.type.shape, shape):
            return x
        return super().reshape(x, shape, name)


def supported_like(name: str, known: Iterable[str]) -> str:
    """The hint for an unsupported op: the supported ops of its dialect, or else the supported dialects."""
    dialect = name.partition(".")[0]
    same = sorted(k for k in known if k.partition(".")[0] == dialect)
    if same:
        return f"supported ops of this dialect: {', '.join(same)}"
    return f"supported dialects: {', '.join(sorted({k.partition('.')[0] for k in known}))}"


class Importer:
    """The state of one import: the environment, the builder, and the state that handlers share."""

    def __init__(self, module: Any, name: str, automatic: frozenset[str], handlers: Mapping[str, Handler]):
        self.module = module
        self.builder = Builder(name)
        self.env: dict[Any, Entry] = {}
        self.automatic = automatic
        self.handlers = handlers
        self.body_asserts = True
        """Whether a ``cf.assert`` inside a body is checked, which a frontend may do by itself."""
        self.affine_maps: dict[Any, Any] = {}
        self._blobs: dict[str, bytes] | None = None
        self._constants: dict[Value, np.ndarray[Any, Any]] = {}

    # Traversal ------------------------------------------------------------------------------
    def run(self, block: Any) -> list[Entry]:
        """Import a block; returns the operands of its terminator."""
        for view in block.operations:
            op = view.operation
            if op.name in ("func.return", "return"):
                return [self.env[v] for v in op.operands]
            self.builder.location = Location(mlir.location_text(op.location))
            self.visit(op)
        raise ImportModelError("the function has no return")

    def visit(self, op: Any) -> None:
        """Import one op of the function's body."""
        handler = self.handlers.get(op.name)
        if handler is not None:
            handler(self, op)
        elif op.name in RULES and not mlir.is_tensor(op.results[0]):
            args = [self.scalar(v) for v in op.operands]
            self.bind(op, RULES[op.name](HOST, op, args, mlir.element_type(op.results[0].type)))
        else:
            raise self.unsupported(op, supported_like(op.name, {*self.handlers, *RULES}))

    def unsupported(self, op: Any, detail: str) -> UnsupportedOpError:
        """The error for an op without a lowering."""
        return UnsupportedOpError(op.name, mlir.location_text(op.location), detail)

    def bind(self, op: Any, entry: Entry, result: int = 0) -> None:
        """Map a result of ``op`` to an entry."""
        self.env[op.results[result]] = entry

    # Operands -------------------------------------------------------------------------------
    def scalar(self, mlir_value: Any) -> Scalar:
        """The scalar to which an MLIR value is mapped."""
        entry = self.env[mlir_value]
        if isinstance(entry, (Value, Splat, Empty, Elements)):
            raise ImportModelError(f"a tensor is used as a number: {mlir_value}")
        return entry

    def tensor(self, mlir_value: Any) -> TensorEntry:
        """The tensor entry to which an MLIR value is mapped, not materialised."""
        entry = self.env[mlir_value]
        if not isinstance(entry, (Value, Splat, Empty, Elements)):
            raise ImportModelError(f"a number is used as a tensor: {mlir_value}")
        return entry

    def value(self, mlir_value: Any) -> Value:
        """The tensor to which an MLIR value is mapped, as a value of the Graph."""
        value = self.materialise(self.tensor(mlir_value))
        self.env[mlir_value] = value
        return value

    def materialise(self, entry: TensorEntry) -> Value:
        """The Graph value of a tensor entry."""
        if isinstance(entry, Value):
            return entry
        if isinstance(entry, Empty):  # undefined content: any value is valid
            return self.elementwise(zero(entry.dtype), entry.shape)
        if isinstance(entry, Splat):
            return self.elementwise(entry.scalar, entry.shape)
        if all(isinstance(s, Const) for s in entry.scalars):
            shape = [d for d in entry.shape if isinstance(d, int)]
            data = np.array([s.value for s in entry.scalars if isinstance(s, Const)], entry.dtype.numpy)
            return self.constant(data.reshape(shape))
        space = Space(entry.shape)
        position = space.from_linear(row_major(entry.shape))
        chosen = entry.scalars[-1]
        for i in reversed(range(len(entry.scalars) - 1)):
            here = space.compare("eq", position, Const(i, DType.I64))
            chosen = space.select(here, entry.scalars[i], chosen)
        return self.elementwise(chosen, entry.shape)

    def constant(self, data: np.ndarray[Any, Any], name: str = "const") -> Value:
        """A constant held in memory; equal small constants are shared."""
        for value, known in self._constants.items():
            if known.dtype == data.dtype and known.shape == data.shape and known.tobytes() == data.tobytes():
                return value
        value = self.builder.constant(name, Constant.of(data), data.shape, dtypes.from_numpy(data.dtype))
        if data.size <= 64:
            self._constants[value] = data
        return value

    # Shapes ---------------------------------------------------------------------------------
    def dim(self, scalar: Scalar, op: Any) -> DimLike:
        """A scalar as a dim expression. Raises UnsupportedOpError when it depends on tensor data."""
        value = as_dim(scalar)
        if value is None:
            raise self.unsupported(op, "a shape that depends on the content of a tensor is not supported")
        return value

    def mixed(self, op: Any, static: Iterable[int], dynamic: Iterable[Any]) -> list[Scalar]:
        """The scalars of MLIR's mixed static and dynamic lists: static numbers, with operands for the dynamic
        ones."""
        operands = iter(dynamic)
        return [self.scalar(next(operands)) if n == mlir.DYNAMIC else Const(n, DType.I64) for n in static]

    def unify(self, a: DimLike, b: DimLike, op: Any) -> DimLike:
        """The common value of two dims that must be equal. Raises ImportModelError when they cannot be."""
        if a == b:
            return a
        for x, y in ((a, b), (b, a)):
            name = self._automatic_name(x)
            if name is not None and (isinstance(y, int) or self._automatic_name(y) is not None):
                raise Unify(name, y)
        low, high = dims.bounds(dims.add(a, dims.mul(b, -1)))
        if low > 0 or high < 0:
            raise ImportModelError(
                f"{op.name} at {mlir.location_text(op.location) or 'an unknown location'}: "
                f"sizes {a} and {b} must be equal and are not"
            )
        if isinstance(a, int) or isinstance(b, int):
            return a if isinstance(a, int) else b
        return a if len(str(a)) <= len(str(b)) else b

    def _automatic_name(self, d: DimLike) -> str | None:
        """The name of a dim that is a single automatic symbol."""
        if not isinstance(d, Expr):
            return None
        names = [s.name for s in d.symbols()]
        alone = len(names) == 1 and names[0] in self.automatic and str(d) == names[0]
        return names[0] if alone else None

    # Building -------------------------------------------------------------------------------
    def elementwise(self, body: Scalar, shape: Sequence[DimLike], name: str = "v") -> Value:
        """A Generic whose only operands are those of its `Load` leaves."""
        return Body(self, shape).finish(body, name=name)

    def load(self, value: Value) -> Scalar:
        """The element of a one-element tensor as a host scalar."""
        return Load.of(self.builder.reshape(value, ()))

    def blobs(self) -> dict[str, bytes]:
        """The module's resource blobs, read once."""
        if self._blobs is None:
            self._blobs = mlir.resource_blobs(self.module)
        return self._blobs
