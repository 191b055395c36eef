"""The guards of an exported program as shape constraints.

torch.export keeps the conditions between sizes that its trace assumed as expressions of Python, over
``L['x'].size()[0]`` or, in strict mode, ``L['flat_args'][0].size()[0]``; its own module checks them in every
call. They are an attribute that torch does not document (``_guards_code``, written into .pt2 files too).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import ShapeGuardPythonPrinter
from torch.utils import _pytree as pytree

from mansard import dims
from mansard.dims import DimLike
from mansard.errors import ImportModelError
from mansard.frontends.pytorch.sizes.symbols import SymbolTable, input_sizes, shape_environment
from mansard.plan.constraints import ShapeConstraint
from mansard.python_syntax import parse_expression

_RELATIONS = {ast.LtE: "<=", ast.Lt: "<", ast.GtE: "<=", ast.Gt: "<", ast.Eq: "==", ast.NotEq: "!="}
_OPERATORS: Mapping[type, Callable[[DimLike, DimLike], DimLike]] = {
    ast.Add: dims.add, ast.Mult: dims.mul, ast.FloorDiv: dims.floordiv, ast.Mod: dims.mod,
    ast.Sub: lambda a, b: dims.add(a, dims.mul(b, -1)),
}  # fmt: skip
_TORCH = str(Path(torch.__file__).parent)
_FUNCTIONS = {"max": dims.maximum, "Max": dims.maximum, "min": dims.minimum, "Min": dims.minimum}


def guards(program: torch.export.ExportedProgram) -> tuple[str, ...]:
    """The guards of a program that was not decomposed, each once.

    Those of memory layouts are left out: no result depends on strides. A saved program does not tell them
    from others and keeps all, as torch does.
    """
    stated = dict.fromkeys(getattr(program, "_guards_code", None) or ())
    environment = shape_environment(program)
    if environment is None or not stated:
        return tuple(stated)
    sources = environment.var_to_sources
    text = ShapeGuardPythonPrinter(sources, lambda source: source.name, sources).doprint
    of_layout = {text(g.expr) for g in environment.guards if is_of_layout(g)}
    others = {text(g.expr) for g in environment.guards if not is_of_layout(g)}
    return tuple(s for s in stated if s in others or s not in of_layout)


def shape_constraints(
    program: torch.export.ExportedProgram, symbols: SymbolTable, stated: Sequence[str]
) -> tuple[ShapeConstraint, ...]:
    """The constraints of ``stated`` guards that the ranges and divisors of the dims do not imply.

    Raises ImportModelError for a guard that is no relation between sizes of inputs.
    """
    shapes = [tuple(map(symbols.dim, sizes)) for sizes in input_sizes(program).values()]
    sources = _sources(program)
    constraints: list[ShapeConstraint] = []
    for guard in stated:
        try:
            constraints += _Guard(sources, shapes).constraints(parse_expression(guard.strip()))
        except (_NoFormError, SyntaxError) as error:
            raise ImportModelError(
                f"the program was exported for sizes where {guard}, which has no form as a constraint "
                f"between dims ({error}); make those dims static"
            ) from error
    return tuple(dict.fromkeys(c for c in constraints if not c.implied))


def is_of_layout(recorded: Any) -> bool:
    """Whether torch recorded a guard for a tensor's strides."""
    frame = recorded.sloc.framework_loc
    in_torch = frame is not None and frame.filename.startswith(_TORCH)
    return in_torch and any(word in str(frame) for word in ("contiguous", "stride"))


class _NoFormError(Exception):
    """A part of a guard that has no form as a dim expression."""


class _Guard:
    """Reads one guard."""

    def __init__(self, sources: Mapping[str, int], shapes: Sequence[Sequence[DimLike]]) -> None:
        self.sources, self.shapes = sources, shapes

    def constraints(self, node: ast.expr) -> list[ShapeConstraint]:
        """The relations that all have to hold."""
        if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.And):
            return [c for value in node.values for c in self.constraints(value)]
        if not isinstance(node, ast.Compare):
            raise _NoFormError(ast.unparse(node))
        terms = [self.dim(term) for term in (node.left, *node.comparators)]
        result = []
        for left, relation, right in zip(terms, node.ops, terms[1:], strict=False):
            if type(relation) not in _RELATIONS:
                raise _NoFormError(ast.unparse(node))
            sides = (right, left) if isinstance(relation, (ast.GtE, ast.Gt)) else (left, right)
            result.append(ShapeConstraint.of(sides[0], _RELATIONS[type(relation)], sides[1]))
        return result

    def dim(self, node: ast.expr) -> DimLike:
        """A size, a number, or arithmetic of them."""
        if isinstance(node, ast.Constant) and type(node.value) is int:
            return node.value
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return dims.mul(self.dim(node.operand), -1)
        if isinstance(node, ast.BinOp):
            return self._operation(node)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS:
            first, *others = (self.dim(arg) for arg in node.args)
            for other in others:
                first = _FUNCTIONS[node.func.id](first, other)
            return first
        if isinstance(node, ast.Subscript):
            return self._size(node)
        raise _NoFormError(ast.unparse(node))

    def _operation(self, node: ast.BinOp) -> DimLike:
        left, right = self.dim(node.left), self.dim(node.right)
        if isinstance(node.op, ast.Pow) and isinstance(right, int) and right >= 0:
            return dims.product([left] * right)
        divides = isinstance(node.op, (ast.FloorDiv, ast.Mod))
        if type(node.op) not in _OPERATORS or (divides and dims.bounds(right)[0] < 1):
            raise _NoFormError(ast.unparse(node))
        return _OPERATORS[type(node.op)](left, right)

    def _size(self, node: ast.Subscript) -> DimLike:
        """``L['x'].size()[0]``."""
        call, axis = node.value, node.slice
        if (
            isinstance(call, ast.Call)
            and isinstance(call.func, ast.Attribute)
            and call.func.attr == "size"
            and isinstance(axis, ast.Constant)
            and isinstance(axis.value, int)
        ):
            number = self.sources.get(ast.unparse(call.func.value))
            if number is not None and 0 <= axis.value < len(self.shapes[number]):
                return self.shapes[number][axis.value]
        raise _NoFormError(ast.unparse(node))


def _sources(program: torch.export.ExportedProgram) -> dict[str, int]:
    """The numbers of the flattened inputs by the expressions that guards have for them."""
    spec = program.call_spec.in_spec
    leaves = pytree.tree_unflatten(list(range(spec.num_leaves)), spec)
    names = _argument_names(program)
    numbers: dict[str, int] = {}
    for path, number in pytree.tree_flatten_with_path(leaves)[0]:
        numbers[f"L['flat_args'][{number}]"] = number
        kind, parameter, *inner = path
        name = getattr(parameter, "key", None)
        if kind.idx == 0:
            name = names[parameter.idx] if parameter.idx < len(names) else None
        if name is not None:
            rest = pytree.keystr(tuple(inner))
            numbers[f"L['{name}']{rest}"] = number
            if several := re.fullmatch(r"(.+)_(\d+)", str(name)):  # of a parameter *args
                numbers.setdefault(f"L['{several[1]}'][{several[2]}]{rest}", number)
    return {ast.unparse(parse_expression(source)): number for source, number in numbers.items()}


def _argument_names(program: torch.export.ExportedProgram) -> list[Any]:
    for entry in program.module_call_graph:
        if entry.fqn == "" and entry.signature is not None:
            return list(entry.signature.forward_arg_names or ())
    return []
