"""Import of linalg-on-tensors modules as Graphs.

`import_linalg` takes a module in memory with descriptions of its arguments; `import_mlir` takes a user's text
or file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mansard import dims
from mansard.arguments import names, shown
from mansard.dims import Dim, DimLike
from mansard.dtypes import DType
from mansard.errors import ImportModelError, UnsupportedOpError
from mansard.frontends.linalg import mlir
from mansard.frontends.linalg.body import Body
from mansard.frontends.linalg.checks import ResultCheck, substituted
from mansard.frontends.linalg.cleanup import clean
from mansard.frontends.linalg.handlers import HANDLERS
from mansard.frontends.linalg.importer import Argument, Importer, Unify
from mansard.frontends.linalg.scalars import HOST
from mansard.frontends.linalg.values import Elements, Empty, Entry, Splat
from mansard.frontends.mlir_worker.passes import PipelineError, new_context, parse
from mansard.frontends.mlir_worker.pool import lower
from mansard.frontends.mlir_worker.process import WorkerDiedError
from mansard.ir.graph import Graph
from mansard.ir.scalar import Scalar
from mansard.ir.types import Constant, IndexMap, Location, Value
from mansard.ir.verify import verify
from mansard.plan.constraints import ShapeConstraint

AUTOMATIC_MAX = 2**31 - 1
"""Upper bound of a dim without a stated range."""

PREPARE = "inline, func.func(convert-elementwise-to-linalg, linalg-generalize-named-ops), canonicalize, cse"
"""The pipeline after which a module of linalg on tensors can be imported."""


def import_mlir(
    source: str | Path,
    *,
    function: str = "main",
    input_names: Sequence[str] = (),
    dims: Mapping[str, Sequence[DimLike | Dim | None]] | None = None,
    constants: Mapping[int | str, Constant] | None = None,
) -> Graph:
    """Import linalg-on-tensors MLIR from text, or from a file when ``source`` is a path.

    ``function`` is the entry point (the only function, when there is just one). ``dims`` gives, for
    an input name, its dims: a `Dim`, an expression, or None for "as in the module". Unnamed dynamic sizes
    become symbols ``d0``, ``d1`` … from 1 to 2**31 - 1; those that must be equal share a symbol.
    ``constants`` binds arguments, by number or name, to data.

    Raises ImportModelError for text that is not MLIR, UnsupportedOpError for ops without a lowering.
    """
    text = _read(source) if isinstance(source, Path) else source
    module = _prepared(text.encode(errors="replace"))
    func = _find_function(module, function)
    given_names = names("input_names", input_names, ImportModelError, "x")
    for what, given in (("dims", dims), ("constants", constants)):
        if given is not None and not isinstance(given, Mapping):
            raise ImportModelError(f"{what}={shown(given)}: it takes a mapping by input")
    arguments = _describe_arguments(func, list(given_names), dims or {}, constants or {})
    return import_linalg(module, arguments, function=function)


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, ValueError) as error:
        raise ImportModelError(f"cannot read {path}: {error}") from error


def import_linalg(
    module: Any,
    arguments: Sequence[Argument],
    *,
    function: str = "main",
    name: str = "main",
    output_names: Sequence[str] = (),
    output_dtypes: Sequence[DType] = (),
    updates: Mapping[int, str] | None = None,
    checks: Sequence[ResultCheck] = (),
    constraints: Sequence[ShapeConstraint] = (),
    body_asserts: bool = True,
) -> Graph:
    """Import one function of a module in memory, on which `PREPARE` has run.

    ``arguments`` describe the function's arguments in order. ``updates`` maps the results that are final
    values of states to their arguments (result number to argument name); the others are outputs, with names
    and types from ``output_names`` and ``output_dtypes`` (which may differ from the MLIR types in signedness
    only). The last results are no outputs but what ``checks`` are of, in order. ``constraints`` relate
    symbols of the arguments. Without ``body_asserts`` a ``cf.assert`` inside a body is left out: for callers
    whose ``checks`` cover them.
    """
    func = _find_function(module, function)
    known = list(arguments)
    while True:
        try:
            importer = Importer(module, name, _automatic(known), HANDLERS)
            importer.body_asserts = body_asserts
            graph = _import(importer, func, known, output_names, output_dtypes, updates or {}, checks)
        except Unify as same:
            values = {same.name: same.value}
            checks = [check.substituted(values) for check in checks]
            known = [replace(a, shape=tuple(substituted(d, values) for d in a.shape)) for a in known]
            constraints = [
                replace(c, left=substituted(c.left, values), right=substituted(c.right, values))
                for c in constraints
            ]
        else:
            graph = replace(graph, constraints=tuple(c for c in constraints if not c.implied))
            verify(graph)
            return graph


def _prepared(text: bytes) -> Any:
    try:
        return parse(lower(text, [PREPARE]), new_context())
    except PipelineError as error:
        problem = "the MLIR module cannot be used" if error.parsed else "not a valid MLIR module"
        raise ImportModelError(f"{problem}: {error}") from error
    except WorkerDiedError as error:
        raise ImportModelError(f"the MLIR module cannot be used: reading it, MLIR {error}") from error


def _find_function(module: Any, name: str) -> Any:
    functions = [op.operation for op in module.body.operations if op.operation.name == "func.func"]
    defined = {f.attributes["sym_name"].value: f for f in functions if len(f.regions[0].blocks)}
    if name in defined:
        return defined[name]
    if len(defined) == 1:
        return next(iter(defined.values()))
    raise ImportModelError(
        f"the module has no function {name!r} with a body; it has {', '.join(defined) or 'none'}"
    )


def _describe_arguments(
    func: Any,
    names: list[str],
    shapes: Mapping[str, Sequence[DimLike | Dim | None]],
    constants: Mapping[int | str, Constant],
) -> list[Argument]:
    arguments: list[Argument] = []
    count = 0
    for i, value in enumerate(func.regions[0].blocks[0].arguments):
        name = names[i] if i < len(names) else f"arg{i}"
        constant = constants.get(i, constants.get(name))
        sizes: tuple[int | None, ...] = mlir.tensor_shape(value.type) if mlir.is_tensor(value) else ()
        if constant is not None:
            sizes = constant.load().shape
        given = shapes.get(name, [None] * len(sizes))
        if len(given) != len(sizes):
            raise ImportModelError(f"dims of {name!r} has {len(given)} entries for a rank of {len(sizes)}")
        shape: list[DimLike] = []
        for size, wanted in zip(sizes, given, strict=True):
            if size is not None:
                shape.append(size)
            elif wanted is not None:
                shape.append(dims.symbol(wanted) if isinstance(wanted, Dim) else wanted)
            else:
                shape.append(dims.symbol(Dim(f"d{count}", 1, AUTOMATIC_MAX)))
                count += 1
        arguments.append(Argument(name, tuple(shape), mlir.element_type(value.type), constant))
    return arguments


def _import(
    importer: Importer,
    func: Any,
    arguments: Sequence[Argument],
    output_names: Sequence[str],
    output_dtypes: Sequence[DType],
    updates: Mapping[int, str],
    checks: Sequence[ResultCheck],
) -> Graph:
    if len(func.regions[0].blocks) != 1:
        raise UnsupportedOpError("cf.br", "", "functions with branches are not supported")
    block = func.regions[0].blocks[0]
    states = _bind_arguments(importer, block, arguments)
    results = importer.run(block)
    outputs: list[Value] = []
    first_check = len(results) - len(checks)
    for i, entry in enumerate(results[:first_check]):
        value = _output(importer, entry)
        if i in updates:
            state = states[updates[i]]
            importer.builder.update_state(state, _retyped(importer, value, state.type.dtype))
        else:
            wanted = output_dtypes[len(outputs)] if output_dtypes else value.type.dtype
            outputs.append(_retyped(importer, value, wanted))
    _append_checks(importer, results[first_check:], checks)
    graph = clean(importer.builder.build(outputs, _unique(output_names or [v.name for v in outputs])))
    verify(graph)
    return graph


def _append_checks(importer: Importer, results: Sequence[Entry], checks: Sequence[ResultCheck]) -> None:
    """Append the asserts of results, equal ones once."""
    known: set[tuple[Value, ResultCheck]] = set()
    for entry, check in zip(results, checks, strict=True):
        importer.builder.location = Location(check.location)
        value = _output(importer, entry)
        if (value, check) in known:
            continue
        known.add((value, check))
        if check.limits is None:
            importer.builder.assert_true(value, check.message)
        else:
            importer.builder.assert_indices(value, check.message, *check.limits)


def _unique(names: Sequence[str]) -> list[str]:
    taken: dict[str, int] = {}
    result = []
    for name in names:
        taken[name] = taken.get(name, 0) + 1
        result.append(name if taken[name] == 1 else f"{name}_{taken[name] - 1}")
    return result


def _automatic(arguments: Sequence[Argument]) -> frozenset[str]:
    """Symbols named ``d<number>`` with the automatic range: the import may find them to be equal."""
    names = set()
    for d in (d for a in arguments for d in a.shape if not isinstance(d, int)):
        for s in d.symbols():
            if s.max == AUTOMATIC_MAX and s.name[:1] == "d" and s.name[1:].isdigit():
                names.add(s.name)
    return frozenset(names)


def _bind_arguments(importer: Importer, block: Any, arguments: Sequence[Argument]) -> dict[str, Value]:
    if len(block.arguments) != len(arguments):
        raise ImportModelError(
            f"the function has {len(block.arguments)} arguments, {len(arguments)} are described"
        )
    states: dict[str, Value] = {}
    shared: dict[int, Value] = {}
    for argument, mlir_value in zip(arguments, block.arguments, strict=True):
        value = _declare(importer, argument, shared)
        if argument.state:
            states[argument.name] = value
        typed = _retyped(importer, value, mlir.element_type(mlir_value.type))
        importer.env[mlir_value] = typed if mlir.is_tensor(mlir_value) else importer.load(typed)
    return states


def _declare(importer: Importer, argument: Argument, shared: dict[int, Value]) -> Value:
    builder = importer.builder
    if argument.state:
        return builder.state(argument.name, argument.shape, argument.dtype, argument.constant)
    if argument.constant is None:
        return builder.input(argument.name, argument.shape, argument.dtype)
    if id(argument.constant) not in shared:
        shared[id(argument.constant)] = builder.constant(
            argument.name, argument.constant, argument.shape, argument.dtype
        )
    return shared[id(argument.constant)]


def _output(importer: Importer, entry: Entry) -> Value:
    if isinstance(entry, (Value, Splat, Empty, Elements)):
        return importer.materialise(entry)
    return importer.elementwise(entry, ())


def _retyped(importer: Importer, value: Value, dtype: DType) -> Value:
    """The same bits as a type of other signedness (MLIR's integers are signless); bool and i8 by value."""
    if value.type.dtype is dtype:
        return value
    body = Body(importer, value.type.shape)
    x: Scalar = body.read(value, IndexMap.identity(value.type.rank))
    same_bits = DType.BOOL not in (value.type.dtype, dtype) and value.type.dtype.bits == dtype.bits
    return body.finish(body.space.bitcast(x, dtype) if same_bits else HOST.cast(x, dtype), name=value.name)
