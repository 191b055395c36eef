"""Import of an ONNX graph: node by node, with the rules of the table or the standard's functions."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from mansard.dims import DimLike
from mansard.dtypes import DType
from mansard.errors import ImportModelError, UnsupportedOpError
from mansard.frontends.emission.emitter import Emitter
from mansard.frontends.emission.tensor import Tensor
from mansard.frontends.emission.unsupported import ContentNeededError
from mansard.frontends.onnx import functions
from mansard.frontends.onnx.entries import Entry, Unsupported
from mansard.frontends.onnx.entries import Sequence as TensorSequence
from mansard.frontends.onnx.folding import array_of, fold
from mansard.frontends.onnx.node import Node
from mansard.frontends.onnx.table import find_rule, refusal
from mansard.frontends.onnx.weights import constant_of, dtype_of, initialiser_dtype, is_inline
from mansard.ir.types import Location, Value

DEFAULT = ("", "ai.onnx")


@dataclass(frozen=True)
class Dequantised:
    """Integers, their scales and zero points, the axis along which there are several of these, and the size
    of the blocks that share one (0: none do)."""

    codes: Tensor
    scale: Tensor
    zero: Tensor | None
    axis: int
    block: int


class GraphImporter(Emitter):
    """Imports graphs and their subgraphs into one Graph."""

    def __init__(self, name: str, opsets: Mapping[str, int], local: Mapping[tuple[str, str], Any]) -> None:
        super().__init__(name)
        self.opsets = {("" if k in DEFAULT else k): v for k, v in opsets.items()}
        self.local = local
        """Functions that the model defines, by domain and name."""
        self.scopes: list[dict[str, Entry]] = [{}]
        self.stated: dict[str, tuple[DimLike, ...]] = {}
        """Shapes of results as far as the model states them all in numbers."""
        self.only_returned: frozenset[str] = frozenset()
        """Names of results of the model that no node reads."""
        self.sizes: dict[str, tuple[int, Tensor]] = {}
        """Axis and size (rank 0) of results of the model whose size depends on content, by name."""
        self.dequantised: dict[Tensor, Dequantised] = {}
        """What results of DequantizeLinear are computed from."""
        self.problems: list[UnsupportedOpError] = []
        self.origins: dict[Value, str] = {}
        """The inputs of the model."""

    # Names ------------------------------------------------------------------------------------
    def find(self, name: str) -> Entry:
        """What a name stands for, in the innermost scope that has it."""
        for scope in reversed(self.scopes):
            if name in scope:
                return scope[name]
        raise ImportModelError(f"the ONNX graph reads {name!r}, which nothing defines")

    def bind(self, name: str, entry: Entry) -> None:
        """Give a name its meaning."""
        self.scopes[-1][name] = entry

    @contextmanager
    def scope(self, names: Mapping[str, Entry], *, closed: bool = False) -> Iterator[None]:
        """Names of a subgraph; of a function's body (``closed``), which sees no others."""
        before = self.scopes
        self.scopes = [dict(names)] if closed else [*before, dict(names)]
        try:
            yield
        finally:
            self.scopes = before

    # Graphs -----------------------------------------------------------------------------------
    def initialise(self, graph: Any, folder: Any = None) -> None:
        """Bind the initialisers of a graph."""
        for tensor in graph.initializer:
            self.bind(tensor.name, self.initialiser(tensor, folder))
        if graph.sparse_initializer:
            raise ImportModelError("the ONNX graph has sparse initialisers, which are not supported")

    def initialiser(self, tensor: Any, folder: Any = None) -> Tensor:
        """An initialiser: known content if it is small, otherwise a weight."""
        dtype = initialiser_dtype(tensor)
        constant = constant_of(tensor, folder)
        if is_inline(tensor):
            return Tensor(tuple(tensor.dims), dtype, content=np.array(constant.load()), name=tensor.name)
        return Tensor(tuple(tensor.dims), dtype, constant=constant, name=tensor.name)

    def run(self, nodes: Sequence[Any]) -> None:
        """Import nodes in order."""
        for proto in nodes:
            inputs = [self.find(name) if name else None for name in proto.input]
            if any(_unsupported(entry) for entry in inputs):
                self._note_missing(proto)
                results: list[Entry | None] = [Unsupported()] * len(proto.output)
            else:
                results = self._node(proto, inputs)
            for name, entry in zip(proto.output, results, strict=False):
                if name and entry is not None:
                    self.bind(name, entry)

    def subgraph(self, graph: Any, inputs: Sequence[Entry]) -> list[Entry]:
        """The results of a body (of If, Loop, Scan …), which sees the names around it."""
        names = [value.name for value in graph.input]
        if len(inputs) > len(names):
            raise ImportModelError(f"body {graph.name!r} takes {len(names)} inputs, not {len(inputs)}")
        with self.scope(dict(zip(names, inputs, strict=False))):
            self.initialise(graph)
            self.run(graph.node)
            return [self.find(value.name) for value in graph.output]

    # Nodes ------------------------------------------------------------------------------------
    def _node(self, proto: Any, inputs: list[Entry | None]) -> list[Entry | None]:
        domain = "" if proto.domain in DEFAULT else proto.domain
        node = Node(proto, self._version(domain, proto.op_type), inputs)
        outer = self.builder.location
        if not outer.text:
            self.builder.location = Location(node.location.removeprefix("node "))
        try:
            return self._results(node, domain)
        except UnsupportedOpError as error:
            self.problems.append(
                error.with_origins(self.builder.producers, self.origins)
                if isinstance(error, ContentNeededError)
                else error
            )
            return [Unsupported()] * len(proto.output)
        except ImportModelError as error:
            if node.full_name in str(error):
                raise
            raise ImportModelError(f"{node.full_name} at {node.location}: {error}") from error
        finally:
            self.builder.location = outer

    def _results(self, node: Node, domain: str) -> list[Entry | None]:
        packed = [e for e in node.inputs if isinstance(e, Tensor) and e.dtype.bits < 8 and e.value is None]
        if packed and node.op != "DequantizeLinear":
            name, dtype = packed[0].name, packed[0].dtype.value
            raise node.fail(f"initialiser {name!r} of {dtype}, which DequantizeLinear alone takes")
        known = fold(node, self.opsets.get("", 1))
        if known is not None:
            return [self.literal(content) for content in known]
        local = self.local.get((domain, node.op))
        if local is not None:
            return list(functions.call(self, node, local))
        found = find_rule(domain, node.op)
        result = found(self, node) if found is not None else None
        if result is None:
            body = functions.body_of(node, self.opsets.get(domain, 1))
            if body is None:
                raise node.fail("no rule imports this op" if found is None else "this form is not supported")
            return list(functions.call(self, node, body))
        return result if isinstance(result, list) else [result]

    def _note_missing(self, proto: Any) -> None:
        """Note a node behind an unsupported one if its op has no rule either, or one that refuses it."""
        domain = "" if proto.domain in DEFAULT else proto.domain
        reason = refusal(domain, proto.op_type)
        known = find_rule(domain, proto.op_type) or (domain, proto.op_type) in self.local
        if known and reason is None:
            return
        node = Node(proto, self._version(domain, proto.op_type), [])
        if reason is not None or not functions.has_body(node):
            self.problems.append(node.fail(reason or "no rule imports this op"))

    def _version(self, domain: str, op: str) -> int:
        opset = self.opsets.get(domain, 1)
        try:
            return int(onnx.defs.get_schema(op, opset, domain).since_version)
        except onnx.defs.SchemaError:
            return opset

    # For rules --------------------------------------------------------------------------------
    def attribute_tensor(self, tensor: Any) -> Tensor:
        """The tensor of an attribute."""
        array = array_of(tensor)
        dtype = dtype_of(tensor.data_type, "an attribute")
        if math.prod(array.shape) <= 1024:
            return self.literal(array, dtype)
        return self.initialiser(tensor)

    def stated_shape(self, node: Node, output: int = 0) -> tuple[DimLike, ...] | None:
        """The shape that the model states for a result in numbers."""
        return self.stated.get(node.outputs[output]) if len(self.scopes) == 1 else None


def _unsupported(entry: Entry | None) -> bool:
    if isinstance(entry, TensorSequence):
        return any(_unsupported(item) for item in entry.items)
    return isinstance(entry, Unsupported)


def dtype_named(number: int, node: Node) -> DType:
    """The element type of an attribute such as ``to``."""
    return dtype_of(number, f"{node.full_name} at {node.location}")
