"""Reads the MODEL argument into keyword arguments of `mansard.compile`."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import typer

from mansard.cli.specs import TensorArgument
from mansard.dims import Dim

Dynamic = Mapping[str, Mapping[int, Dim]]
"""Dynamic dims by input and axis."""
Keywords = dict[str, Any]


def read_source(text: str, inputs: Sequence[TensorArgument], dynamic: Dynamic) -> Keywords:
    """The model and the description of its inputs; raises typer.BadParameter when ``text`` names no model."""
    path, _, function = text.rpartition(":")
    if path.endswith(".py"):
        return _from_function(_load_function(Path(path), function), text, inputs, dynamic)
    file = Path(text)
    reader = _READERS.get(file.suffix, _from_file)
    if reader is _from_file and not _is_read(file):
        raise typer.BadParameter(f"{text!r} is not a model Mansard reads; it reads {_known()}")
    if not _is_file(file) and not (reader is _from_file and file.is_dir()):
        raise typer.BadParameter(f"there is no file {text}")
    return reader(file, inputs, dynamic)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a name too long
        return False


def _is_read(path: Path) -> bool:
    from mansard.frontends import frontends

    return any(frontend.accepts(path) for frontend in frontends().values())


def _known() -> str:
    from mansard.frontends import frontends

    others = [f.reads for name, f in frontends().items() if name not in _OF_SUFFIXES]
    return ", ".join([*_READERS, "FILE.py:FUNCTION", *others])


def _from_file(path: Path, inputs: Sequence[TensorArgument], dynamic: Dynamic) -> Keywords:
    """A file of a frontend of another package: ``--input`` gives examples, ``--dynamic`` what varies."""
    keywords: Keywords = {"model": path}
    if inputs:
        keywords["example_inputs"] = [argument.load() for argument in inputs]
    if dynamic:
        keywords["dynamic_shapes"] = dynamic
    return keywords


def _from_exported(path: Path, inputs: Sequence[TensorArgument], dynamic: Dynamic) -> Keywords:
    if inputs or dynamic:
        raise typer.BadParameter(
            f"{path} states its inputs and what varies; --input and --dynamic were for torch.export.export"
        )
    return {"model": path}


def _from_mlir(path: Path, inputs: Sequence[TensorArgument], dynamic: Dynamic) -> Keywords:
    """``--input`` names arguments and gives their ranks, ``--dynamic`` the ranges of ``?`` sizes."""
    names = [argument.name or f"arg{number}" for number, argument in enumerate(inputs)]
    ranks = {
        name: len(argument.type.shape)
        for name, argument in zip(names, inputs, strict=True)
        if argument.type is not None
    }
    keywords: Keywords = {"model": path}
    if names:
        keywords["input_names"] = names
    if dynamic:
        if unknown := [name for name in dynamic if name not in ranks]:
            raise typer.BadParameter(f"--dynamic {unknown[0]} needs --input {unknown[0]}=SHAPExDTYPE")
        keywords["dims"] = {
            name: [axes.get(axis) for axis in range(ranks[name])] for name, axes in dynamic.items()
        }
    return keywords


def _from_stating(path: Path, inputs: Sequence[TensorArgument], dynamic: Dynamic) -> Keywords:
    """``--dynamic`` gives ranges for the model's symbolic dims, by their names in the model."""
    if inputs:
        raise typer.BadParameter(f"{path} states its inputs; it takes no --input")
    return {"model": path, "dims": {dim.name: dim for axes in dynamic.values() for dim in axes.values()}}


def _from_tflite(path: Path, inputs: Sequence[TensorArgument], dynamic: Dynamic) -> Keywords:
    """``--dynamic`` gives ranges for sizes that the file leaves open, by input and axis."""
    if inputs:
        raise typer.BadParameter(f"{path} states its inputs; it takes no --input")
    dims = {f"{name}_{axis}": dim for name, axes in dynamic.items() for axis, dim in axes.items()}
    return {"model": path, "dims": dims}


def _from_graph(path: Path, inputs: Sequence[TensorArgument], dynamic: Dynamic) -> Keywords:
    if inputs or dynamic:
        raise typer.BadParameter(f"{path} states its inputs and dims; it takes no --input and no --dynamic")
    return {"model": path}


_READERS: dict[str, Callable[[Path, Sequence[TensorArgument], Dynamic], Keywords]] = {
    ".pt2": _from_exported,
    ".onnx": _from_stating,
    ".tflite": _from_tflite,
    ".jax": _from_stating,
    ".mlir": _from_mlir,
    ".mlirbc": _from_mlir,
    ".mir": _from_graph,
}
_OF_SUFFIXES = ("pytorch", "onnx", "tflite", "jax", "stablehlo", "linalg", "mir")
"""Frontends whose files have a reader of their own here."""


@contextlib.contextmanager
def _user_code(what: str) -> Iterator[None]:
    """What the user's own program raises is an error of one line, with the traceback behind it."""
    from mansard.errors import ImportModelError

    try:
        yield
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(place.filename).name}:{place.lineno}"
        raise ImportModelError(
            f"{what} failed at {where}: {type(error).__name__}: {error} (MANSARD_TRACEBACK=1 shows more)"
        ) from error


def _from_function(
    function: Callable[[], Any], text: str, inputs: Sequence[TensorArgument], dynamic: Dynamic
) -> Keywords:
    """A module with example inputs: those of the command line, otherwise those that the function returns."""
    with _user_code(text):
        result = function()
    if (
        not isinstance(result, (tuple, list))
        or len(result) not in (2, 3)
        or not isinstance(result[1], (tuple, list))
    ):
        raise typer.BadParameter(
            f"{text} must return (module, example inputs) or (module, example inputs, dynamic shapes)"
        )
    examples = tuple(_to_torch(argument) for argument in inputs) or tuple(result[1])
    shapes = dynamic if dynamic else (result[2] if len(result) == 3 else None)
    return {"model": result[0], "example_inputs": examples, "dynamic_shapes": shapes}


def _to_torch(argument: TensorArgument) -> Any:
    """The example as a torch tensor, which is what a torch module takes."""
    from mansard.errors import ImportModelError

    try:
        import torch  # noqa: F401  # to_torch below expects it to be there
    except ImportError:
        raise ImportModelError(
            "compiling a torch module needs PyTorch: pip install 'mansard[torch]'"
        ) from None
    from mansard.runtime.memory.tensors import to_torch

    return to_torch(argument.load())


def _load_function(path: Path, name: str) -> Callable[[], Any]:
    """The function of a Python file. The file is run: it is the user's own program."""
    if not _is_file(path):
        raise typer.BadParameter(f"there is no file {path}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None  # the suffix is .py
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)
    sys.path.insert(0, str(path.parent.resolve()))  # as for `python FILE.py`: imports from its folder work
    with _user_code(str(path)):
        spec.loader.exec_module(module)
    function = getattr(module, name, None)
    if not callable(function):
        raise typer.BadParameter(f"{path} has no function {name!r}")
    return function  # type: ignore[no-any-return]
