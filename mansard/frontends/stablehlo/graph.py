"""Import of StableHLO functions: op by op, with the rules of the table."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from mansard.dims import DimLike
from mansard.dtypes import DType
from mansard.errors import CompileError, ImportModelError, UnsupportedOpError
from mansard.frontends.emission.emitter import Emitter, SizesDifferError
from mansard.frontends.emission.tensor import Tensor
from mansard.frontends.stablehlo import attributes, folding
from mansard.frontends.stablehlo.entries import Entry, Pieces, Unsupported
from mansard.frontends.stablehlo.node import Node, location_text
from mansard.frontends.stablehlo.table import find_rule, refusal, results_of
from mansard.ir.shapes import same_dim
from mansard.ir.types import Constant, Location
from mansard.plan.constraints import ShapeConstraint

MAX_CONTENT = 1 << 12
"""Elements of a constant that is looked into: small ones decide shapes, indices and the lengths of loops."""
MAX_IOTA = 1 << 8
_TERMINATORS = ("func.return", "return", "stablehlo.return", "shape.assuming_yield")
_CALLS = ("func.call", "call", "stablehlo.composite")


class StableHloImporter(Emitter):
    """Imports the functions of a module into one Graph; calls are inlined."""

    def __init__(self, name: str, module: Any) -> None:
        super().__init__(name)
        self.functions = {
            attributes.word(view.operation.attributes["sym_name"]): view.operation
            for view in module.body.operations
            if view.operation.name == "func.func"
        }
        self.scopes: list[dict[Any, Entry]] = [{}]
        self.problems: list[UnsupportedOpError] = []
        self.constraints: list[ShapeConstraint] = []
        self.ramps: dict[int, tuple[Tensor, int]] = {}
        """Tensors whose elements are their index along an axis, by identity."""
        self._locations: dict[Any, str] = {}
        self._caller = ""

    # Names ------------------------------------------------------------------------------------
    def find(self, name: Any) -> Entry:
        """What a value of the module stands for."""
        for scope in reversed(self.scopes):
            entry: Entry | None = scope.get(name)
            if entry is not None:
                return entry
        raise ImportModelError(f"the module reads {name}, which nothing defines")

    @contextmanager
    def scope(self, names: Mapping[Any, Entry], *, closed: bool) -> Iterator[None]:
        """Values of a region, or of a function's body (``closed``), which sees no others."""
        before = self.scopes
        self.scopes = [dict(names)] if closed else [*before, dict(names)]
        try:
            yield
        finally:
            self.scopes = before

    # Functions and regions --------------------------------------------------------------------
    def call(self, name: str, inputs: Sequence[Entry]) -> list[Entry]:
        """The results of a function."""
        function = self.functions.get(name)
        if function is None or not function.regions[0].blocks:
            raise ImportModelError(f"the module calls function {name!r}, which it does not have")
        return self.block(function.regions[0].blocks[0], inputs, closed=True)

    def block(self, block: Any, inputs: Sequence[Entry], *, closed: bool = False) -> list[Entry]:
        """The results of a block for its arguments."""
        arguments = list(block.arguments)
        if len(arguments) != len(inputs):
            raise ImportModelError(f"a block takes {len(arguments)} arguments, not {len(inputs)}")
        with self.scope(dict(zip(arguments, inputs, strict=True)), closed=closed):
            for view in block.operations:
                op = view.operation
                if op.name in _TERMINATORS:
                    return [self.find(v) for v in op.operands]
                results = self.visit(op)
                for value, entry in zip(op.results, results, strict=True):
                    self.scopes[-1][value] = entry
        raise ImportModelError("a block of the module has no return")

    # Ops --------------------------------------------------------------------------------------
    def visit(self, op: Any) -> Sequence[Entry]:
        """The results of one op."""
        inputs = [self.find(v) for v in op.operands]
        node = Node(op, inputs, self._location(op))
        if any(isinstance(entry, Unsupported) for entry in inputs):
            self._note_missing(node)
            return [Unsupported()] * len(op.results)
        outer = self.builder.location
        self.builder.location = Location(node.location)
        try:
            return self._results(node)
        except UnsupportedOpError as error:
            self.problems.append(error)
            return [Unsupported()] * len(op.results)
        except SizesDifferError:
            raise
        except CompileError as error:
            if node.name in str(error):
                raise
            raise ImportModelError(f"{node.name} at {node.location}: {error}") from error
        finally:
            self.builder.location = outer

    def _results(self, node: Node) -> Sequence[Entry]:
        if node.name in _CALLS:
            return self._called(node)
        known = folding.fold(node)
        if known is not None:
            return [self.literal(known, node.dtype())]
        function = find_rule(node.name)
        if function is None:
            raise node.fail(refusal(node.name) or "no rule imports this op")
        return results_of(function(self, node))

    def _called(self, node: Node) -> Sequence[Entry]:
        outer, self._caller = self._caller, node.location
        try:
            return self._inlined(node)
        finally:
            self._caller = outer

    def _inlined(self, node: Node) -> Sequence[Entry]:
        name = node.word("callee") if node.has("callee") else node.word("decomposition")
        if node.name == "stablehlo.composite":
            function = find_rule(node.word("name"))
            if function is not None:
                return results_of(function(self, node))
        return self.call(name.lstrip("@").strip('"'), node.inputs)

    def _note_missing(self, node: Node) -> None:
        """Note an op behind an unsupported one if it has no rule either."""
        if node.name not in _CALLS and find_rule(node.name) is None:
            self.problems.append(node.fail(refusal(node.name) or "no rule imports this op"))

    def _location(self, op: Any) -> str:
        """Where an op comes from; what a library function calls, where that was called from."""
        text = self._locations.get(op)
        if text is None:
            text = self._locations[op] = location_text(op.location)
        if self._caller and ":" not in text:
            return f"{text} in {self._caller}" if text else self._caller
        return text

    # For rules --------------------------------------------------------------------------------
    def constant_tensor(self, attribute: Any, name: str = "") -> Tensor:
        """A dense attribute: known content if it is small, otherwise a weight."""
        dtype = attributes.element_type(attribute.type)
        shape = tuple(attribute.type.get_dim_size(i) for i in range(attribute.type.rank))
        splat = attributes.splat_of(attribute)
        if splat is not None and math.prod(shape) != 1:
            return self.splat(shape, splat, dtype)
        if math.prod(shape) <= MAX_CONTENT:
            return Tensor(shape, dtype, content=attributes.dense(attribute), name=name)
        return Tensor(shape, dtype, constant=Constant(name, lambda: attributes.dense(attribute)), name=name)

    def tensor_of(self, entry: Entry) -> Tensor:
        """An entry as a tensor."""
        if isinstance(entry, Pieces):
            return entry.joined()
        if not isinstance(entry, Tensor):
            raise ImportModelError("a token or tuple where a tensor is read")
        return entry

    def ramp(self, t: Tensor, axis: int) -> Tensor:
        """Note that the elements of a tensor are their index along an axis."""
        self.ramps[id(t)] = (t, axis)
        return t

    def ramp_like(self, t: Tensor, source: Tensor) -> Tensor:
        """A tensor of the same elements as another, in another type."""
        known = self.ramps.get(id(source))
        return t if known is None else self.ramp(t, known[1])

    def ramp_moved(self, t: Tensor, source: Tensor, places: Sequence[int]) -> Tensor:
        """A tensor of another's elements, whose dims are now at ``places``."""
        known = self.ramps.get(id(source))
        if known is None and source.rank == 1 and self.is_ramp(source, 0, source.shape[0]):
            return self.ramp(t, places[0])
        return t if known is None else self.ramp(t, places[known[1]])

    def is_ramp(self, t: Tensor, axis: int, extent: DimLike) -> bool:
        """Whether the elements of a tensor are known to be their index along an axis."""
        if id(t) in self.ramps:
            return self.ramps[id(t)][1] == axis
        if t.content is not None and not t.symbolic and isinstance(extent, int):
            index = [1] * t.rank
            index[axis] = extent
            expected = np.arange(extent).reshape(index)
            return bool((t.content == expected).all())
        return False

    def small_iota(self, shape: Sequence[DimLike], axis: int, dtype: DType) -> Tensor | None:
        """The indices along an axis as known content, where it is small."""
        sizes = [d for d in shape if isinstance(d, int)]
        if len(sizes) != len(shape) or math.prod(sizes) > MAX_IOTA:
            return None
        index = [1] * len(sizes)
        index[axis] = sizes[axis]
        content = np.broadcast_to(np.arange(sizes[axis]).reshape(index), sizes).astype(dtype.numpy)
        return self.literal(content, dtype)

    def dim_content(self, values: Sequence[DimLike], shape: Sequence[int], dtype: DType) -> Tensor:
        """Dims as the known content of a tensor."""
        content = np.empty(len(values), object)
        content[:] = values
        return self.literal(content.reshape(shape), dtype)

    def result_shape(self, node: Node, operand: int) -> tuple[DimLike, ...]:
        """The shape of a result: the numbers of its type, or those of an operand that says it."""
        stated = node.shape()
        if all(d is not None for d in stated):
            return node.static_shape()
        return tuple(node.dim_list(operand))

    @staticmethod
    def scalar_number(t: Tensor) -> float | int | bool | None:
        """The number that all elements of a tensor are, where it is known and no dim."""
        if t.splat is not None:
            return t.splat
        if t.content is None or t.content.size != 1 or t.symbolic:
            return None
        element = t.content.reshape(-1)[0]
        if t.dtype is DType.BOOL:
            return bool(element)
        return float(element) if t.dtype.is_float else int(element)

    @staticmethod
    def is_one(d: DimLike) -> bool:
        """Whether a size is the number 1."""
        return isinstance(d, int) and d == 1

    @staticmethod
    def is_zero(d: DimLike) -> bool:
        """Whether a size is the number 0."""
        return isinstance(d, int) and d == 0

    def equal(self, a: DimLike, b: DimLike) -> None:
        """Raise SizesDifferError for sizes that are not equal."""
        if not same_dim(a, b):
            raise SizesDifferError(a, b)

    @staticmethod
    def same(a: DimLike, b: DimLike) -> bool:
        """Whether two sizes are equal."""
        return same_dim(a, b)
