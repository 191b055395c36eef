"""Exporting or loading an ``ExportedProgram`` and decomposing it to the ops that torch-mlir lowers."""

from __future__ import annotations

import contextlib
import inspect
import io
import logging
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.utils import _pytree as pytree

from mansard.errors import ImportModelError, MansardError, UnsupportedOpError
from mansard.frontends.pytorch.buffer_aliases import merge_aliases, partial_alias
from mansard.frontends.pytorch.decompositions.overrides import QUICK_OVERRIDES
from mansard.frontends.pytorch.decompositions.quantised import define_ops
from mansard.frontends.pytorch.decompositions.table import decomposition_table
from mansard.frontends.pytorch.expansion.functions import TraceableFunctions
from mansard.frontends.pytorch.expansion.program import expand, unroll_recurrent
from mansard.frontends.pytorch.expansion.recurrent import RECURRENT_OPS
from mansard.frontends.pytorch.sizes.dynamic import DimNames, dims_by_input, torch_shapes
from mansard.frontends.pytorch.sizes.guards import DecompositionGuards
from mansard.torch_caches import register_caches


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Suppress torch's output and warnings: the relevant information is in its exceptions."""
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)


def _unprinted() -> contextlib.AbstractContextManager[Any]:
    """Keeps torch.fx from generating and compiling Python code for every intermediate graph.

    The code is never run and takes a third of an export's time. Torch has the switch for its own compiler;
    with versions that lack it, an export takes longer.
    """
    try:
        from torch.fx._lazy_graph_module import _use_lazy_graph_module
    except ImportError:
        return contextlib.nullcontext()
    switch: contextlib.AbstractContextManager[Any] = _use_lazy_graph_module(True)
    return switch


@contextlib.contextmanager
def _eval_mode(module: torch.nn.Module) -> Iterator[None]:
    """The module in eval mode (no dropout, stored batch statistics); its flags are restored afterwards."""
    flags = [(m, m.training) for m in module.modules()]
    # An exported module (as quantisation produces) does not support eval(): its mode is part of its graph.
    with contextlib.suppress(NotImplementedError):
        module.eval()
    try:
        yield
    finally:
        for m, flag in flags:
            m.training = flag


def load_program(path: Path) -> torch.export.ExportedProgram:
    """A saved program. Raises ImportModelError for a file that is not one."""
    try:
        path.stat()
    except FileNotFoundError:
        raise ImportModelError(f"no such file: {path}") from None
    except (OSError, ValueError) as error:
        raise ImportModelError(f"cannot read {path}: {error}") from error
    define_ops()
    try:
        with quiet():
            return torch.export.load(path)
    except Exception as error:
        raise ImportModelError(f"{path} is not a program saved by torch.export.save: {error}") from error


def export_module(
    module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], dynamic_shapes: Any
) -> tuple[torch.export.ExportedProgram, DimNames]:
    """Export a module; also returns the user's named dims by input and axis."""
    scripted = [name for name, part in module.named_modules() if isinstance(part, torch.jit.ScriptModule)]
    if scripted:
        where = f"its part {scripted[0]!r}" if scripted[0] else "the model"
        raise ImportModelError(
            f"{where} is a torch.jit module (scripted or traced), which torch.export cannot export: compile "
            "the module that it was made from"
        )
    register_caches()
    args, kwargs = _distinct((args, kwargs))
    bound = _bind(module, args, kwargs)
    try:
        dynamic_shapes = torch_shapes(dynamic_shapes, bound)
        with quiet(), _eval_mode(module), torch.no_grad():
            with _unprinted(), TraceableFunctions():  # which strict mode does not support
                program = torch.export.export(
                    module, args, kwargs, dynamic_shapes=dynamic_shapes, strict=False
                )
            program = merge_aliases(program)
            if partial_alias(program):  # which strict mode, much slower, may recognise
                program = torch.export.export(
                    module, args, kwargs, dynamic_shapes=dynamic_shapes, strict=True
                )
        return program, dims_by_input(bound, (args, kwargs), dynamic_shapes)
    except ImportModelError:
        raise
    except Exception as error:
        raise ImportModelError(
            f"torch.export cannot export {type(module).__name__}: {_reason(error)}"
        ) from error


def _bind(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The example inputs by the names of ``forward``'s parameters."""
    try:
        return dict(inspect.signature(module.forward).bind(*args, **kwargs).arguments)
    except (TypeError, ValueError) as error:
        raise ImportModelError(f"the example inputs do not fit {type(module).__name__}: {error}") from error


def _distinct(inputs: Any) -> Any:
    """The inputs, with a copy of each tensor that occurs twice, which torch.export would merge, and of each
    view of another tensor, of whose sizes it would make conditions."""
    try:
        leaves, spec = pytree.tree_flatten(inputs)
    except RecursionError:
        raise ImportModelError("the example inputs are nested too deeply") from None
    seen: set[int] = set()
    for i, leaf in enumerate(leaves):
        if isinstance(leaf, torch.Tensor):
            leaves[i] = leaf.clone() if id(leaf) in seen or leaf._base is not None else leaf
            seen.add(id(leaf))
    return pytree.tree_unflatten(leaves, spec)


def _reason(error: Exception) -> str:
    """The message of torch.export without its debugging advice: the first paragraph and the location."""
    text = str(error)
    place = re.search(r'(File "[^"]+", line \d+, in \w+)\n *(.*)', text.partition("raised this error")[2])
    where = f" ({place.group(1)}: {place.group(2)})" if place else ""
    advice = ""
    if isinstance(error, GuardOnDataDependentSymNode):
        advice = "; what the model takes for granted of such a number can be stated: torch._check(n > 0)"
    return f"{type(error).__name__}: {text.strip().split(chr(10) * 2)[0]}{where}{advice}"


def _expanded(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    try:
        with quiet(), torch.no_grad():
            return expand(program)
    except MansardError:
        raise
    except Exception as error:  # of torch, which traces parts of it again
        text = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"
        raise ImportModelError(f"the exported program cannot be decomposed: {text}") from error


def decompose(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """The program in the ops that torch-mlir lowers; attention is not decomposed.

    Raises UnsupportedOpError for an op whose decomposition is right for some sizes of its dynamic dims only,
    and for a loop whose number of iterations is not known.
    """
    program = _expanded(program)
    guards = DecompositionGuards(program)
    try:
        with quiet(), _unprinted(), QUICK_OVERRIDES, torch.no_grad():
            table = guards.watch(decomposition_table())
            decomposed = program.run_decompositions(
                {op: rule for op, rule in table.items() if op not in RECURRENT_OPS}
            )
            decomposed = unroll_recurrent(decomposed, table)
    except UnsupportedOpError as error:  # without torch's notes
        raise UnsupportedOpError(error.op, error.location, error.detail) from error
    except Exception as error:
        shared = partial_alias(program)
        if shared:
            raise ImportModelError(
                f"{shared[0]!r} and {shared[1]!r} share a part of their memory: hold the whole as a buffer, "
                "and take its parts where the model uses them"
            ) from error
        raise ImportModelError(f"the exported program cannot be decomposed: {error}") from error
    guards.check()
    return decomposed
