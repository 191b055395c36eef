"""Import of subgraphs, operator by operator, with the rules of the table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mansard.errors import ImportModelError, UnsupportedOpError
from mansard.frontends.emission.emitter import Emitter
from mansard.frontends.emission.tensor import Tensor
from mansard.frontends.emission.unsupported import ContentNeededError
from mansard.frontends.tflite.entries import Complex, Entry, Unsupported
from mansard.frontends.tflite.folding import fold
from mansard.frontends.tflite.model import Operator, Subgraph, TensorInfo, TfliteModel
from mansard.frontends.tflite.node import Node
from mansard.frontends.tflite.table import Result, Rule, find_rule, refusal
from mansard.frontends.tflite.unsigned import with_unsigned
from mansard.frontends.tflite.variables import Variables
from mansard.ir.types import Location, Value

_INLINE_INTEGERS, _INLINE_NUMBERS = 1024, 16
_MAX_DEPTH = 64
_MAX_OPERATORS = 1 << 17
"""Operators of a model whose loops are unrolled."""
_PARTWISE = ("RESHAPE", "SQUEEZE", "EXPAND_DIMS", "TRANSPOSE", "SLICE", "STRIDED_SLICE")


class GraphImporter(Emitter):
    """Imports subgraphs into one Graph."""

    def __init__(self, model: TfliteModel) -> None:
        super().__init__(model.name)
        self.model = replace(model, subgraphs=tuple(with_unsigned(s) for s in model.subgraphs))
        self.problems: list[UnsupportedOpError] = []
        self.origins: dict[Value, str] = {}
        """The inputs of the model."""
        self.variables = Variables()
        self._constants: dict[tuple[int, int], Tensor] = {}
        self._nodes: dict[tuple[int, int], Node] = {}
        self._depth = 0
        self._imported = 0

    def run(self, number: int, inputs: Sequence[Entry]) -> list[Entry]:
        """The results of a subgraph for given operands."""
        if not 0 <= number < len(self.model.subgraphs):
            raise ImportModelError(f"the .tflite file is damaged: it has no subgraph {number}")
        subgraph = self.model.subgraphs[number]
        if len(inputs) != len(subgraph.inputs):
            raise ImportModelError(
                f"subgraph {number} takes {len(subgraph.inputs)} operands, not {len(inputs)}"
            )
        if self._depth >= _MAX_DEPTH:
            raise ImportModelError("the .tflite file is damaged: its subgraphs call each other endlessly")
        entries: dict[int, Entry] = dict(zip(subgraph.inputs, inputs, strict=True))
        self._depth += 1
        try:
            for operator in subgraph.operators:
                self._operator(operator, subgraph, entries)
        finally:
            self._depth -= 1
        return [self._entry(i, subgraph, entries) for i in subgraph.outputs]

    def _entry(self, index: int, subgraph: Subgraph, entries: dict[int, Entry]) -> Entry:
        if index in entries:
            return entries[index]
        info = subgraph.tensors[index]
        if info.constant is not None:
            return self.constant(subgraph, index)
        if info.variable:
            return self.variables.state(self, f"{subgraph.index}.{index}", info)
        raise ImportModelError(
            f"subgraph {subgraph.index} reads tensor {index} ({info.name!r}), which nothing computes"
        )

    def constant(self, subgraph: Subgraph, index: int) -> Tensor:
        """A constant: known content if it is small, otherwise a weight."""
        key = (subgraph.index, index)
        if key not in self._constants:
            self._constants[key] = _constant(subgraph.tensors[index])
        return self._constants[key]

    def computed_by(self, node: Node, number: int) -> Node | None:
        """The operator behind an operand, in the same subgraph; None for inputs and constants."""
        return self._nodes.get((node.subgraph.index, node.operator.inputs[number]))

    def _operator(self, operator: Operator, subgraph: Subgraph, entries: dict[int, Entry]) -> None:
        self._imported += 1
        if self._imported > _MAX_OPERATORS:
            raise ImportModelError(f"the model has more than {_MAX_OPERATORS} operators, loops unrolled")
        inputs = [None if i < 0 else self._entry(i, subgraph, entries) for i in operator.inputs]
        node = Node(operator, subgraph, inputs)
        found = find_rule(f"custom.{operator.op}" if operator.custom else operator.op)
        results: Sequence[Entry | None]
        if any(isinstance(entry, Unsupported) for entry in inputs):
            if found is None:
                self.problems.append(node.fail(refusal(operator.op)))
            results = [Unsupported()] * len(operator.outputs)
        else:
            results = self._results(node, found)
        self._nodes.update({(subgraph.index, index): node for index in operator.outputs})
        known = zip(operator.outputs, results, strict=False)
        entries.update({index: entry for index, entry in known if entry is not None})

    def _results(self, node: Node, found: Rule | None) -> Sequence[Entry | None]:
        outer = self.builder.location
        if not outer.text:
            self.builder.location = Location(node.location)
        try:
            known = fold(node)
            if known is not None:
                return [self.literal(content, node.result(i).dtype) for i, content in enumerate(known)]
            if found is None:
                raise node.fail(refusal(node.op))
            result = self._applied(found, node)
        except UnsupportedOpError as error:
            self.problems.append(
                error.with_origins(self.builder.producers, self.origins)
                if isinstance(error, ContentNeededError)
                else error
            )
            return [Unsupported()] * len(node.operator.outputs)
        except ImportModelError as error:
            if "operator " in str(error):
                raise
            raise ImportModelError(f"{node.full_name} at {node.location}: {error}") from error
        except (IndexError, ValueError, ZeroDivisionError, OverflowError) as error:
            raise ImportModelError(
                f"{node.full_name} at {node.location} is damaged: operands or options do not fit ({error})"
            ) from error
        finally:
            self.builder.location = outer
        return result if isinstance(result, Sequence) else [result]

    def _applied(self, found: Rule, node: Node) -> Result:
        """A rule's result; of complex numbers, views are taken of both parts."""
        number = node.inputs[0] if node.inputs else None
        if not isinstance(number, Complex) or node.op not in _PARTWISE:
            return found(self, node)
        parts = []
        for part in (number.real, number.imaginary):
            taken = found(self, Node(node.operator, node.subgraph, [part, *node.inputs[1:]]))
            assert isinstance(taken, Tensor)
            parts.append(taken)
        return Complex(parts[0], parts[1])


def _constant(info: TensorInfo) -> Tensor:
    constant, dtype = info.constant, info.dtype
    assert constant is not None
    count = 1
    for d in info.shape:
        count *= d
    few = _INLINE_NUMBERS if dtype.is_float or dtype.bits < 32 else _INLINE_INTEGERS
    if info.kind == "BOOL":
        few = _INLINE_INTEGERS
    if count <= few:
        return Tensor(info.shape, dtype, content=constant.load(), name=info.name)
    return Tensor(info.shape, dtype, constant=constant, name=info.name)
