"""Tensors whose size depends on the content of others, as tensors of the size's bound beside a count.

    y = x[x > 0]            # u0 elements
    return y * 2, y.mean()

becomes, for 20 elements of x, the elements in the order of a sort of 20 places, their number n, 20 products
and the sum of the first n by n. The results are 20 elements, the mean, and n as the size of the first.

Bounds are torch's: the number of elements that an op selects from, or a smaller one that the model states
with ``torch._check``, which every call then checks.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.export.graph_signature import OutputKind, OutputSpec, TensorArgument
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from mansard.errors import MansardError, UnsupportedOpError
from mansard.frontends.emission.unsupported import joined
from mansard.frontends.pytorch.bounded.call import Call
from mansard.frontends.pytorch.bounded.combinations import COMBINATIONS
from mansard.frontends.pytorch.bounded.moves import MOVES, fitted, slice_count
from mansard.frontends.pytorch.bounded.selections import SELECTIONS
from mansard.frontends.pytorch.bounded.sizes import (
    LARGEST,
    NoFormError,
    Shape,
    evaluated,
    is_open,
    largest,
    open_axes,
    symbols_of,
)
from mansard.frontends.pytorch.bounded.unchanged import is_elementwise, is_unchanged, name_of, shapes_of
from mansard.frontends.pytorch.decompositions.table import decomposition_table
from mansard.frontends.pytorch.expansion.program import updated
from mansard.frontends.pytorch.expansion.splice import splice
from mansard.frontends.pytorch.export import quiet
from mansard.frontends.pytorch.inserter import Inserter
from mansard.frontends.pytorch.locations import location_of
from mansard.frontends.pytorch.scalars import ScalarTensors, is_number

aten = torch.ops.aten
Lengths = Sequence[tuple[int, int]]
"""(output, axis) of the sizes that a program returns beside its outputs, in order."""
_ITEM = aten._local_scalar_dense.default
_SUPPORTED = (
    "supported of such sizes: elementwise math, views, slices, concatenation, reductions, softmax, sorts, "
    "products, attention, reads at indices, and index_put"
)


def bound_sizes(program: torch.export.ExportedProgram) -> tuple[torch.export.ExportedProgram, Lengths]:
    """A decomposed program without tensors whose size depends on contents; itself if it has none.

    The sizes of its outputs follow the outputs, as int64 of rank 0.

    Raises UnsupportedOpError that names every op for which there is no such form.
    """
    if not any(open_axes(s) for node in program.graph.nodes for s in shapes_of(node.meta.get("val"))):
        return program, ()
    graph = torch.fx.Graph()
    output = graph.graph_copy(program.graph, {})
    graph.output(output)
    module = torch.fx.GraphModule(program.graph_module, graph)
    bounding = _Bounding(module, program.range_constraints)
    with quiet():
        bounding.run()
        lengths = bounding.results(program)
    kind = OutputKind.USER_OUTPUT
    specs = [OutputSpec(kind, TensorArgument(name=node.name), None) for node in bounding.returned]
    module.graph.eliminate_dead_code()
    return updated(program, module, specs), lengths


class _Bounding:
    """Rewrites a graph in place, node by node."""

    def __init__(self, module: torch.fx.GraphModule, ranges: Mapping[Any, Any]) -> None:
        self.module, self.graph, self.ranges = module, module.graph, ranges
        self.table = decomposition_table()
        self.shapes: dict[Any, Shape] = {}
        """The shapes that tensors have in the program, of those that now have bounds."""
        self.limits: dict[Any, Any] = {}
        self.counts: dict[Any, Any] = {}
        self.capacities: dict[Any, Any] = {}
        self.returned: list[Any] = []

    def run(self) -> None:
        """Rewrite all nodes. Raises UnsupportedOpError."""
        problems: list[UnsupportedOpError] = []
        for node in list(self.graph.nodes):
            if node.op != "call_function" or node._erased:
                continue
            try:
                self._rewrite(node)
            except MansardError:
                raise
            except Exception as error:  # also of torch, where a rule does not fit the operands
                text = str(error) if isinstance(error, NoFormError) else f"{type(error).__name__}: {error}"
                name = str(node.target).removesuffix(".default")
                problems.append(UnsupportedOpError(name, location_of(node), _reason(text)))
                if not self._skip(node):
                    break
        if problems:
            last = problems[-1]
            problems[-1] = UnsupportedOpError(last.op, last.location, f"{last.detail}; {_SUPPORTED}")
            raise joined(problems)

    def _skip(self, node: Any) -> bool:
        """Go on after a node without a form, to find the others; False where its size has no bound."""
        try:
            for symbol in {s for shape in shapes_of(node.meta["val"]) for s in symbols_of(shape)}:
                if symbol not in self.limits:
                    return False
            self._keep(node)
        except NoFormError:
            return False
        return True

    # Nodes ------------------------------------------------------------------------------------------------
    def _shape(self, node: Any) -> Shape:
        return self.shapes.get(node) or tuple(node.meta["val"].shape)

    def _rewrite(self, node: Any) -> None:
        value = node.meta.get("val")
        if node.target is operator.getitem and isinstance(value, torch.Tensor):
            if open_axes(value.shape):
                self._keep(node)
            return
        if is_number(node) or value is None:
            self._number(node)
            return
        operands = [n for n in node.all_input_nodes if isinstance(n.meta.get("val"), torch.Tensor)]
        if not any(n in self.shapes for n in operands) and not any(map(open_axes, shapes_of(value))):
            return
        selection = self._selection(node)
        if selection is not None:
            self._select(node, selection)
        elif is_unchanged(node, operands, self.shapes, self._limit):
            self._keep(node)
        else:
            self._replace(node)

    def _number(self, node: Any) -> None:
        """Sizes of tensors that now have bounds, and assertions that always hold."""
        name = name_of(node)
        if name == "_assert_tensor_metadata" and node.all_input_nodes[0] in self.shapes:
            self.graph.erase_node(node)
        elif name in ("sym_size", "sym_numel") and is_open(node.meta["val"]):
            count = self._counted(node, node.meta["val"])
            with self.graph.inserting_before(node):
                item = self.graph.call_function(_ITEM, (count,))
            item.meta = dict(node.meta)
            node.replace_all_uses_with(item)
            self.graph.erase_node(node)
        elif name == "_assert_scalar" and self._always_holds(node.args[0]):
            self.graph.erase_node(node)
        elif node.target is _ITEM and is_open(node.meta["val"]):
            self._bounded_number(node)

    def _bounded_number(self, node: Any) -> None:
        """A number read from a tensor, which may be a size."""
        symbol = node.meta["val"].node.expr
        upper = self._stated(symbol)
        if not symbol.is_Symbol or upper is None or symbol in self.limits:
            return
        self.limits[symbol] = upper
        with self.graph.inserting_before(node):
            into = Inserter(self.graph, node)
            flat = into.call(aten.reshape.default, node.args[0], [])
            if flat.meta["val"].dtype is not torch.int64:
                flat = into.call(torch.ops.prims.convert_element_type.default, flat, torch.int64)
        self.counts[symbol] = flat

    def _stated(self, symbol: Any) -> int | None:
        """The bound that torch knows of a size."""
        known = self.ranges.get(symbol)
        upper = getattr(known, "upper", None)
        if upper is None or not upper.is_Integer or int(upper) > LARGEST:
            return None
        return int(upper)

    def _always_holds(self, condition: Any) -> bool:
        """Whether a condition says no more than that a number is at least 0, or at most what there is."""
        if not isinstance(condition, torch.fx.Node) or condition.target not in (operator.ge, operator.le):
            return False
        number, limit = condition.args
        value = number.meta.get("val") if isinstance(number, torch.fx.Node) else None
        if not isinstance(limit, int) or not isinstance(value, torch.SymInt):
            return False
        capacity = self.capacities.get(value.node.expr)
        if capacity is None:
            return False
        if condition.target is operator.ge:
            return limit <= 0
        return isinstance(capacity, int) and limit >= capacity

    def _selection(self, node: Any) -> Any:
        rule = SELECTIONS.get(node.target)
        if node.target is aten.index.Tensor:
            dtypes = [i.meta["val"].dtype for i in node.args[1] if i is not None]
            return rule if torch.bool in dtypes or torch.uint8 in dtypes else None
        return rule

    # Replacements -----------------------------------------------------------------------------------------
    def _limit(self, size: Any) -> Any:
        return largest(size, self.limits) if is_open(size) else size

    def _keep(self, node: Any) -> None:
        """The node as it is, with bounds for the sizes of its results."""
        value = node.meta["val"]
        if isinstance(value, torch.Tensor):
            self.shapes[node] = tuple(value.shape)
            node.meta["val"] = self._bounded(value)
        else:
            node.meta["val"] = type(value)(
                self._bounded(v) if isinstance(v, torch.Tensor) else v for v in value
            )
        node.meta.pop("tensor_meta", None)

    def _bounded(self, value: torch.Tensor) -> torch.Tensor:
        assert isinstance(value, FakeTensor)
        with value.fake_mode:
            return torch.empty(
                [self._limit(size) for size in value.shape], dtype=value.dtype, device=value.device
            )

    def _replace(self, node: Any) -> None:
        name = name_of(node)
        rule = MOVES.get(name) or COMBINATIONS.get(name)
        shapes = shapes_of(node.meta["val"])
        if rule is None and is_elementwise(node):
            rule = _elementwise
        if rule is None:
            raise NoFormError("")
        if name == "slice":
            self._sliced(node)
        results, requirements = self._traced(node, rule, [s for shape in shapes for s in shape])
        self._substitute(node, results)
        for condition, message in requirements:
            with self.graph.inserting_after(condition):
                self.graph.call_function(aten._assert_async.msg, (condition, message)).meta.update(
                    {k: v for k, v in condition.meta.items() if k != "val"}
                )

    def _sliced(self, node: Any) -> None:
        """A slice may have a size of its own."""
        dim = node.args[1] % len(self._shape(node.args[0])) if len(node.args) > 1 else 0
        size = node.meta["val"].shape[dim]
        if not is_open(size) or free_unbacked_symbols(size) <= self.limits.keys():
            return
        symbol = size.node.expr
        if not symbol.is_Symbol:
            raise NoFormError(f"the size {symbol}")
        room = node.args[0].meta["val"].shape[dim]
        stated = self._stated(symbol)
        whole = self._shape(node.args[0])
        (count,), _ = self._traced(node, slice_count, whole)
        self._define(symbol, room if stated is None else min(stated, room), room, count)

    def _select(self, node: Any, rule: Any) -> None:
        """A node that selects by content."""
        shape = next(s for s in shapes_of(node.meta["val"]) if open_axes(s))
        made = symbols_of(shape) - self.limits.keys()
        known = symbols_of(shape) & self.limits.keys()
        if len(made) > 1 or (not made and len(known) != 1):
            raise NoFormError("")
        symbol = (made or known).pop()  # torch knows that a mask selects as many elements each time
        limit = self.limits.get(symbol)
        stated = limit if isinstance(limit, int) else self._stated(symbol)
        axis = next(axis for axis in open_axes(shape) if symbol in symbols_of([shape[axis]]))
        (*results, count), _ = self._traced(
            node, rule, (), {} if stated is None else {0: stated}, counted=True
        )
        bound = results[0].meta["val"].shape[axis]
        if symbol not in self.limits:
            self._define(symbol, bound, self._capacity(node, stated, bound), count)
        self._substitute(node, results)

    def _capacity(self, node: Any, stated: int | None, bound: Any) -> Any:
        """How many elements there are to select from."""
        if node.target is aten.repeat_interleave.Tensor:
            return LARGEST + 1
        source = node.args[1] if name_of(node) == "masked_select" else node.args[0]
        if node.target is aten.index.Tensor:
            source = next(i for i in node.args[1] if i is not None)
        dim = {"unique_dim": 1, "unique_consecutive": 3}.get(name_of(node), 9)
        along = node.args[dim] if len(node.args) > dim else None
        if isinstance(along, int):
            return source.meta["val"].shape[along]
        count = 1
        for size in source.meta["val"].shape:
            count = count * size
        return count if isinstance(count, int) or stated is not None else bound

    def _define(self, symbol: Any, limit: Any, capacity: Any, count: Any) -> None:
        self.limits[symbol], self.capacities[symbol], self.counts[symbol] = limit, capacity, count

    def _counted(self, before: Any, size: torch.SymInt) -> Any:
        """The node of a size's value, an int64 tensor of rank 0."""
        expression = size.node.expr
        symbols = sorted(free_unbacked_symbols(size), key=str)
        if any(symbol not in self.counts for symbol in symbols):
            raise NoFormError(f"the size {expression} has no bound")
        if expression in self.counts:
            return self.counts[expression]
        nodes = [self.counts[symbol] for symbol in symbols]

        def run(*values: torch.Tensor) -> Any:
            return evaluated(expression, dict(zip(symbols, values, strict=True)))

        with torch.no_grad(), self._mode():
            traced = make_fx(run, decomposition_table=self.table)(*[n.meta["val"] for n in nodes])
        (result,) = splice(self.module, before, traced, nodes)
        return result

    def _traced(
        self,
        node: Any,
        rule: Any,
        sizes: Sequence[Any],
        bounds: Mapping[int, Any] | None = None,
        counted: bool = False,
    ) -> tuple[list[Any], list[tuple[Any, str]]]:
        """A rule's results as nodes before ``node``, and what it requires."""
        leaves, structure = torch.utils._pytree.tree_flatten((list(node.args), dict(node.kwargs)))
        leaves = [self._as_tensor(leaf) for leaf in leaves]
        operands = [leaf for leaf in leaves if isinstance(leaf, torch.fx.Node)]
        shapes = _map(list(node.args), self._operand_shape)
        symbols = symbols_of(sizes) | {s for n in operands for s in symbols_of(self._shape(n))}
        counted_symbols = [s for s in sorted(symbols, key=str) if s in self.counts]
        inputs = [*operands, *(self.counts[s] for s in counted_symbols)]
        requirements: list[tuple[torch.Tensor, str]] = []
        value = node.meta.get("val")
        result = shapes_of(value)[0] if shapes_of(value) else ()

        def run(*values: torch.Tensor) -> Any:
            given = iter(values)
            held = [next(given) if isinstance(leaf, torch.fx.Node) else leaf for leaf in leaves]
            args, kwargs = torch.utils._pytree.tree_unflatten(held, structure)
            counts = dict(zip(counted_symbols, given, strict=True))
            dtype = value.dtype if isinstance(value, torch.Tensor) else torch.int64
            call = Call(node.target, args, kwargs, shapes, result, counts, bounds or {}, self._limit, dtype)
            answer = rule(call)
            if counted:
                answer = [*answer[0], answer[1]]
            requirements.extend(call.requirements)
            found = list(answer) if isinstance(answer, (list, tuple)) else [answer]
            return [x.clone() if any(x is v for v in values) else x for x in found] + [
                condition for condition, _ in call.requirements
            ]

        with torch.no_grad(), self._mode():
            traced = make_fx(run, decomposition_table=self.table)(*[n.meta["val"] for n in inputs])
        nodes = splice(self.module, node, traced, inputs)
        count = len(nodes) - len(requirements)
        texts = [text for _, text in requirements]
        return nodes[:count], list(zip(nodes[count:], texts, strict=True))

    def _mode(self) -> Any:
        return next(
            n.meta["val"].fake_mode for n in self.graph.nodes if isinstance(n.meta.get("val"), FakeTensor)
        )

    def _operand_shape(self, operand: Any) -> Any:
        if not isinstance(operand, torch.fx.Node) or not isinstance(operand.meta.get("val"), torch.Tensor):
            return None
        return self._shape(operand)

    def _as_tensor(self, leaf: Any) -> Any:
        """An operand; numbers that depend on contents as tensors."""
        if not isinstance(leaf, torch.fx.Node) or isinstance(leaf.meta["val"], torch.Tensor):
            return leaf
        value = leaf.meta["val"]
        if is_number(leaf) and free_unbacked_symbols(value):
            return ScalarTensors(self.graph).of(leaf)
        if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            return value
        raise NoFormError("")

    def _substitute(self, node: Any, results: Sequence[Any]) -> None:
        """Let the node's users take results, whose shapes in the program are those of the node's."""
        value = node.meta["val"]
        if isinstance(value, torch.Tensor):
            pairs = [(node, results[0])]
        else:
            pairs = [(user, results[user.args[1]]) for user in list(node.users)]
        for old, new in pairs:
            shape = tuple(old.meta["val"].shape)
            if open_axes(shape):
                self.shapes[new] = shape
            old.replace_all_uses_with(new)
            self.graph.erase_node(old)
        if not isinstance(value, torch.Tensor):
            self.graph.erase_node(node)

    # Results ----------------------------------------------------------------------------------------------
    def results(self, program: torch.export.ExportedProgram) -> Lengths:
        """Add the sizes of the outputs to them; they are `returned`, too."""
        (output,) = (n for n in self.graph.nodes if n.op == "output")
        outputs = list(output.args[0])
        lengths: list[tuple[int, int]] = []
        made: dict[Any, Any] = {}
        number = -1
        for node, spec in zip(outputs, program.graph_signature.output_specs, strict=True):
            number += spec.kind is OutputKind.USER_OUTPUT
            shape = self.shapes.get(node, ()) if isinstance(node, torch.fx.Node) else ()
            for axis in open_axes(shape):
                if spec.kind is not OutputKind.USER_OUTPUT:
                    raise UnsupportedOpError(
                        "buffer",
                        "",
                        f"the size of the buffer {spec.target!r} depends on the content of a tensor",
                    )
                expression = shape[axis].node.expr
                if expression not in made:
                    made[expression] = self._counted(output, shape[axis])
                lengths.append((number, axis))
                self.returned.append(made[expression])
        self.returned = self._distinct(output)
        output.args = ((*outputs, *self.returned),)
        return tuple(lengths)

    def _distinct(self, output: Any) -> list[Any]:
        """A node of its own for each result."""
        nodes: list[Any] = []
        with self.graph.inserting_before(output):
            for node in self.returned:
                if node in nodes:
                    node = Inserter(self.graph, node).call(aten.clone.default, node)
                nodes.append(node)
        return nodes


def _elementwise(call: Call) -> Any:
    args = [fitted(a, call) if isinstance(a, torch.Tensor) else a for a in call.args]
    return call.target(*args, **call.kwargs)


def _map(value: Any, function: Any) -> Any:
    return [_map(v, function) if isinstance(v, (list, tuple)) else function(v) for v in value]


def _reason(text: str) -> str:
    text = text.strip().partition("\n")[0] or "an op on a tensor whose size depends on the content of another"
    if "has no bound" in text and "state one" not in text:
        text += "; state one where the size is read, as in torch._check(n <= 100)"
    return text
