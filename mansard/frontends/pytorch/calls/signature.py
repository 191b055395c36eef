"""The arguments and results of an exported program as descriptions for the linalg importer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.export.graph_signature import InputKind, OutputKind

from mansard.dims import DimLike
from mansard.dtypes import DType
from mansard.errors import ImportModelError, UnsupportedOpError
from mansard.frontends.linalg.importer import Argument
from mansard.frontends.pytorch.calls.interface import length_name, output_paths
from mansard.frontends.pytorch.locations import location_of
from mansard.frontends.pytorch.scalars import ScalarTensors
from mansard.frontends.pytorch.sizes.dynamic import DimNames
from mansard.frontends.pytorch.sizes.symbols import SymbolTable
from mansard.frontends.pytorch.weights import constant_of, dtype_of, identity
from mansard.ir.types import Constant


@dataclass(frozen=True)
class ExportSignature:
    """``arguments`` and results of the function; ``dropped`` are placeholders that are not arguments.

    ``results`` are the graph's outputs to keep, in order: (node, is an output of the model).
    ``updates`` maps a result's number to the state it updates.
    """

    arguments: tuple[Argument, ...]
    dropped: frozenset[str]
    results: tuple[Any, ...]
    output_names: tuple[str, ...]
    output_dtypes: tuple[DType, ...]
    updates: Mapping[int, str]
    symbols: SymbolTable


def read_signature(
    program: torch.export.ExportedProgram,
    dim_names: DimNames,
    input_names: Sequence[str] | None,
    lengths: Sequence[tuple[int, int]] = (),
) -> ExportSignature:
    """The signature of a decomposed program. Its last results are sizes of outputs, along ``lengths``."""
    placeholders = {n.name: n for n in program.graph.nodes if n.op == "placeholder"}
    inputs = _Inputs(program, placeholders, dim_names, input_names)
    arguments = inputs.arguments()
    mutated = _mutations(program)
    arguments = [replace(a, state=a.constant is not None and a.name in mutated.values()) for a in arguments]
    paths = output_paths(program)
    paths += [length_name(paths[number], axis) for number, axis in lengths]
    results, names, dtypes, updates = _results(program, mutated, paths)
    return ExportSignature(
        tuple(arguments),
        frozenset(inputs.dropped),
        tuple(results),
        tuple(names),
        tuple(dtypes),
        updates,
        inputs.symbols,
    )


def _side_effect(program: torch.export.ExportedProgram) -> UnsupportedOpError:
    """The error for a program whose ops are ordered by tokens."""
    calls = (node for node in program.graph.nodes if str(node.target) == "with_effects")
    node = next(calls, None)
    if node is None:
        return UnsupportedOpError("token", "", "an input of the program is a token, not a tensor")
    name = str(node.args[1]).removesuffix(".default")
    return UnsupportedOpError(name, location_of(node), "an op with side effects, which have an order")


def _mutations(program: torch.export.ExportedProgram) -> dict[str, str]:
    """Maps each output that updates a buffer to it. Raises UnsupportedOpError for inputs written in place."""
    targets = {}
    for spec in program.graph_signature.output_specs:
        if spec.kind is OutputKind.BUFFER_MUTATION:
            targets[spec.arg.name] = str(spec.target)
        elif spec.kind is OutputKind.USER_INPUT_MUTATION:
            raise UnsupportedOpError(
                "input mutation",
                "",
                f"the model writes into its input {spec.target!r}; pass a copy, or a buffer",
            )
        elif spec.kind is OutputKind.PARAMETER_MUTATION:
            raise UnsupportedOpError(
                "parameter mutation", "", f"the model changes its parameter {spec.target!r} while it runs"
            )
    return targets


class _Inputs:
    """Reads the input specs of a program."""

    def __init__(
        self,
        program: torch.export.ExportedProgram,
        placeholders: Mapping[str, Any],
        dim_names: DimNames,
        input_names: Sequence[str] | None,
    ) -> None:
        self.program, self.placeholders = program, placeholders
        self.names = list(input_names) if input_names is not None else None
        self.dropped: set[str] = set()
        self.constants: dict[tuple[Any, ...], Constant] = {}
        self.symbols = SymbolTable.of(program, dim_names)

    def arguments(self) -> list[Argument]:
        """One Argument for each placeholder that is not dropped."""
        result = []
        count = 0
        for spec in self.program.graph_signature.input_specs:
            name = spec.arg.name
            if spec.kind is InputKind.USER_INPUT:
                value = self.placeholders[name].meta.get("val")
                if isinstance(value, torch.Tensor):
                    result.append(self._input(name, value, count))
                    count += 1
                else:
                    self._drop_number(name, value)
            elif spec.kind in (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR):
                result.append(self._weight(name, str(spec.target)))
            elif spec.kind is InputKind.TOKEN:
                raise _side_effect(self.program)
            else:
                raise UnsupportedOpError(str(spec.kind), "", f"input {name!r} is not a tensor")
        if self.names is not None and len(self.names) != count:
            raise ImportModelError(f"{len(self.names)} input names for {count} tensor inputs")
        return result

    def _input(self, name: str, value: torch.Tensor, number: int) -> Argument:
        shape: tuple[DimLike, ...] = tuple(self.symbols.dim(d) for d in value.shape)
        wanted = self.names[number] if self.names is not None and number < len(self.names) else name
        return Argument(wanted, shape, dtype_of(value.dtype, f"input {wanted!r}"))

    def _drop_number(self, name: str, value: Any) -> None:
        node = self.placeholders.get(name)
        if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            raise ImportModelError(
                f"input {name!r} is a number that varies; pass it as a tensor, or leave it out of "
                "dynamic_shapes to fix it at its example value"
            )
        if node is not None and node.users:
            node.replace_all_uses_with(value)  # numbers are fixed at their example values
        self.dropped.add(name)

    def _weight(self, name: str, target: str) -> Argument:
        tensor = self._tensor(target)
        key = identity(tensor)
        if key not in self.constants:
            self.constants[key] = constant_of(tensor, target)
        shape = tuple(int(d) for d in tensor.shape)
        return Argument(target, shape, dtype_of(tensor.dtype, f"parameter {target!r}"), self.constants[key])

    def _tensor(self, target: str) -> torch.Tensor:
        for held in (self.program.state_dict, self.program.constants):
            if target in held and isinstance(held[target], torch.Tensor):
                return held[target]
        raise ImportModelError(f"the program has no tensor for {target!r}")


def _results(
    program: torch.export.ExportedProgram, mutated: Mapping[str, str], names_of: Sequence[str]
) -> tuple[list[Any], list[str], list[DType], dict[int, str]]:
    (output,) = (n for n in program.graph.nodes if n.op == "output")
    paths = iter(names_of)
    results: list[Any] = []
    names: list[str] = []
    dtypes: list[DType] = []
    updates: dict[int, str] = {}
    scalars = ScalarTensors(program.graph)
    for node, spec in zip(output.args[0], program.graph_signature.output_specs, strict=True):
        if spec.kind is OutputKind.BUFFER_MUTATION:
            updates[len(results)] = mutated[spec.arg.name]
            results.append(node)
            continue
        path = next(paths)
        if not isinstance(node, torch.fx.Node):
            continue  # None, or a number that was fixed at export
        value = node.meta["val"]
        if not isinstance(value, torch.Tensor):
            node = scalars.of(node)
            value = node.meta["val"]
        results.append(node)
        names.append(path)
        dtypes.append(dtype_of(value.dtype, f"output {path!r}"))
    return results, names, dtypes, updates
