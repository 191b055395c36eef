"""The import pipeline of PyTorch models: export, decomposition, lowering to linalg, import."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mansard.arguments import names, shown
from mansard.errors import ImportModelError, UnsupportedOpError
from mansard.frontends.linalg.module import import_linalg
from mansard.frontends.mlir_worker.pool import warm
from mansard.frontends.pytorch.bounded.program import bound_sizes
from mansard.frontends.pytorch.buffer_aliases import merge_aliases
from mansard.frontends.pytorch.calls.interface import interface_of, with_lengths
from mansard.frontends.pytorch.calls.signature import read_signature
from mansard.frontends.pytorch.checks import collect_checks, results_of
from mansard.frontends.pytorch.computed_places import read_at_indices
from mansard.frontends.pytorch.export import decompose, export_module, load_program
from mansard.frontends.pytorch.import_cache import cached_import
from mansard.frontends.pytorch.lowering import lower_to_linalg
from mansard.frontends.pytorch.sizes.constraints import guards, shape_constraints
from mansard.frontends.pytorch.sizes.dynamic import DimNames
from mansard.frontends.pytorch.sizes.empty import narrow_empty_dims
from mansard.frontends.pytorch.unsupported import with_others
from mansard.ir.graph import Graph


def import_torch(
    model: Any,
    example_args: Any = None,
    kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
    input_names: Sequence[str] | None = None,
    cache: bool = False,
) -> Graph:
    """Import an ``nn.Module``, an ``ExportedProgram`` or the path of a ``.pt2`` file.

    A module is exported with ``torch.export`` on the example inputs (a sequence of positional
    arguments, one tensor, or a mapping of arguments by name, like ``kwargs``; an exported program needs
    none); ``dynamic_shapes`` has the form that ``torch.export`` takes, with dims of torch or of Mansard;
    named dims become the Graph's dims, with their ranges. The module is exported in eval mode; its training
    flags are restored. Numbers among the inputs are fixed at their example values. Buffers that the model
    updates become states. Outputs are flattened and named by their path in the model's output; None outputs
    are dropped. The program's assertions and the ranges of its indices become asserts of the Graph.
    ``cache`` stores the Graph on disk for the next import of the same program.

    Raises ImportModelError for a model that cannot be exported or read, UnsupportedOpError for one
    that uses an op without a lowering.
    """
    import torch

    if kwargs is not None and not isinstance(kwargs, Mapping):
        raise ImportModelError(f"kwargs={shown(kwargs)}: it takes a mapping by parameter name")
    if isinstance(example_args, Mapping):
        example_args, kwargs = (), {**example_args, **(kwargs or {})}
    if input_names is not None:
        input_names = names("input_names", input_names, ImportModelError, "x")
    dim_names: DimNames = {}
    if isinstance(model, (str, Path)):
        program = merge_aliases(load_program(Path(model)))
    elif isinstance(model, torch.export.ExportedProgram):
        program = merge_aliases(model)
    elif isinstance(model, torch.nn.Module):
        program, dim_names = export_module(
            model, _positional(example_args), dict(kwargs or {}), dynamic_shapes
        )
    else:
        raise ImportModelError(
            f"a {type(model).__name__} is not a PyTorch model; "
            "supported: torch.nn.Module, torch.export.ExportedProgram, path of a .pt2 file"
        )
    interface = interface_of(program, model if isinstance(model, torch.nn.Module) else None)
    narrow_empty_dims(program, dim_names)
    name = type(model).__name__ if isinstance(model, torch.nn.Module) else "main"
    entry = cached_import(program, dim_names, input_names, name) if cache else None
    cached = entry.load() if entry else None
    if cached is not None:
        return replace(cached, interface=with_lengths(interface, cached.output_names))
    stated = guards(program)
    warm()  # starts while the program is decomposed
    program, lengths = bound_sizes(decompose(program))
    try:
        read_at_indices(program.graph)
        signature = read_signature(program, dim_names, input_names, lengths)
        checks = collect_checks(program.graph, signature.symbols)
        module = lower_to_linalg(program.graph, signature, checks)
        graph = import_linalg(
            module,
            signature.arguments,
            name=name,
            output_names=signature.output_names,
            output_dtypes=signature.output_dtypes,
            updates=signature.updates,
            checks=results_of(checks),
            constraints=shape_constraints(program, signature.symbols, stated),
            body_asserts=False,
        )
    except UnsupportedOpError as error:
        raise with_others(program, error) from error
    if entry:
        entry.save(graph, signature, program)
    return replace(graph, interface=with_lengths(interface, graph.output_names))


def _positional(example_args: Any) -> tuple[Any, ...]:
    if example_args is None:
        return ()
    return tuple(example_args) if isinstance(example_args, (list, tuple)) else (example_args,)
