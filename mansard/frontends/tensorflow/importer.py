"""The import pipeline of TensorFlow models: a SavedModel, exported as StableHLO in a child process."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mansard.dims import Dim, DimLike
from mansard.errors import ImportModelError
from mansard.frontends.stablehlo.importer import import_stablehlo
from mansard.frontends.tensorflow import export
from mansard.frontends.tensorflow.compiled import import_compiled
from mansard.ir.graph import Graph
from mansard.plan.interface import Interface, Parameter, Structure
from mansard.workers import interpreter

PYTHON_VARIABLE = "MANSARD_TENSORFLOW_PYTHON"
"""The interpreter that has TensorFlow, where this one has not."""
SECONDS = 600


def import_tensorflow(
    model: Any,
    example_inputs: Any = None,
    *,
    signature: str = "serving_default",
    dims: Mapping[str, Sequence[DimLike | Dim | None]] | None = None,
    input_names: Sequence[str] = (),
) -> Graph:
    """Import a SavedModel's folder, a ``.keras`` file, a Keras model or a function of TensorFlow's.

    A ``tf.function`` without an input signature is traced for the example inputs (arrays or
    ``tf.TensorSpec``, whose open sizes become dims), and a Keras model where they are given, such as a model
    with a loop, which TensorFlow exports for sizes that are numbers only. ``signature`` is that of
    the SavedModel to compile. ``dims`` gives, for an input, its sizes, as for StableHLO. Weights are
    constants of the compiled model. TensorFlow (2.17 or newer) exports the model, in a process of its own:
    this interpreter, or the one that ``MANSARD_TENSORFLOW_PYTHON`` names.

    Raises ImportModelError for a model that TensorFlow cannot export, UnsupportedOpError, naming all of them,
    for ops without a rule.
    """
    with tempfile.TemporaryDirectory(prefix="mansard-") as folder:
        order: list[str] = []
        specs: list[Any] = []
        source = Path(model) if isinstance(model, (str, Path)) else Path(folder) / "model"
        if not isinstance(model, (str, Path)):
            order = _save(model, example_inputs, source)
            specs = _specs(_tensorflow(), example_inputs)
        elif example_inputs is not None:
            raise ImportModelError("a saved TensorFlow model states its shapes; it takes no example inputs")
        output = Path(folder) / "model.mlirbc"
        try:
            _export(source, signature, output)
        except ImportModelError:
            if not specs or any(size is None for spec in specs for size in spec.shape):
                raise
            return import_compiled(_tensorflow(), model, specs)
        graph = import_stablehlo(output, dims=dims, input_names=input_names)
    return replace(graph, interface=_interface(graph, order))


def _interface(graph: Graph, order: Sequence[str]) -> Interface | None:
    """A function of the inputs, those of ``order`` first; its result is one tensor, a tuple or a dict.

    A signature's outputs are ``output_0`` … where the model returns no dict.
    """
    names = [value.name for value in graph.inputs]
    if not all(name.isidentifier() for name in names):
        return None
    ordered = sorted(names, key=lambda name: order.index(name) if name in order else len(order))
    parameters = tuple(
        Parameter(name, "POSITIONAL_OR_KEYWORD", Structure("tensor", names.index(name))) for name in ordered
    )
    places = {name: Structure("tensor", number) for number, name in enumerate(graph.output_names)}
    by_number = [f"output_{number}" for number in range(len(places))]
    if set(places) != set(by_number):
        keys = tuple(json.dumps(name) for name in places)
        return Interface(parameters, Structure("dict", keys=keys, children=tuple(places.values())))
    parts = tuple(places[name] for name in by_number)
    return Interface(parameters, parts[0] if len(parts) == 1 else Structure("tuple", children=parts))


def _save(model: Any, example_inputs: Any, folder: Path) -> list[str]:
    """Save a live model; returns the names of its inputs in order, as far as they are known.

    TensorFlow is imported already, since the model is there.
    """
    tensorflow = _tensorflow()
    try:
        if hasattr(model, "export") and example_inputs is None:  # Keras
            model.export(str(folder), verbose=False)
            return [tensor.name for tensor in getattr(model, "inputs", None) or ()]
        if hasattr(model, "export"):
            holder, function = model, tensorflow.function(model)
        elif isinstance(model, tensorflow.Module) and callable(model):
            holder, function = model, model.__call__
        else:
            holder, function = tensorflow.Module(), model
        if hasattr(function, "get_concrete_function"):
            function = function.get_concrete_function(*_specs(tensorflow, example_inputs))
        holder.mansard_function = function
        holder.mansard_variables = list(getattr(function, "variables", ()))
        tensorflow.saved_model.save(holder, str(folder), signatures={"serving_default": function})
        specs = tensorflow.nest.flatten(function.structured_input_signature)
        return [spec.name for spec in specs if isinstance(spec, tensorflow.TensorSpec)]
    except Exception as error:  # whatever TensorFlow or the model raise
        reason = " ".join(str(error).split())
        raise ImportModelError(
            f"TensorFlow cannot save the model: {type(error).__name__}: {reason}"
        ) from error


def _tensorflow() -> Any:
    import tensorflow

    return tensorflow


def _specs(tensorflow: Any, example_inputs: Any) -> list[Any]:
    if example_inputs is None:
        return []
    given = example_inputs if isinstance(example_inputs, (list, tuple)) else [example_inputs]
    return [
        spec
        if isinstance(spec, tensorflow.TensorSpec)
        else tensorflow.TensorSpec(tensorflow.convert_to_tensor(spec).shape, tensorflow.as_dtype(spec.dtype))
        for spec in given
    ]


def _export(source: Path, signature: str, output: Path) -> None:
    """Run the exporter. Raises ImportModelError with what it says."""
    python = interpreter(PYTHON_VARIABLE, "tensorflow")
    if python is None:
        raise ImportModelError(
            f"compiling a TensorFlow model needs TensorFlow: pip install tensorflow, or name an "
            f"interpreter that has it: {PYTHON_VARIABLE}=/path/to/python"
        )
    command = [python or sys.executable, str(Path(export.__file__)), str(source), signature, str(output)]
    try:
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=SECONDS)
    except OSError as error:
        raise ImportModelError(
            f"{PYTHON_VARIABLE}={python!r} cannot be run: {error.strerror or error}"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise ImportModelError(f"TensorFlow did not export {source} within {SECONDS} s") from error
    if done.returncode or not output.is_file():
        said = done.stderr.strip().splitlines()
        reason = said[-1] if said else f"it ended with {done.returncode}"
        raise ImportModelError(f"TensorFlow cannot export {source.name} as StableHLO: {reason}")
