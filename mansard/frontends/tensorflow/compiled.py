"""TensorFlow functions of known sizes as XLA compiles them: with loops and lists, which no export has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from mansard import dtypes
from mansard.frontends.emission.nests import NoFormError, structure_of
from mansard.frontends.stablehlo.importer import Input, import_module
from mansard.frontends.stablehlo.reading import parsed
from mansard.ir.graph import Graph
from mansard.ir.types import Constant
from mansard.plan.interface import Interface, Parameter, Structure


def import_compiled(tensorflow: Any, model: Any, specs: Sequence[Any]) -> Graph:
    """Import a function or Keras model for inputs of known sizes; variables are weights.

    Raises what TensorFlow raises for a function that XLA cannot compile, ImportModelError and
    UnsupportedOpError as for StableHLO.
    """
    function = tensorflow.function(lambda *args: model(*args), jit_compile=True)  # noqa: PLW0108
    concrete = function.get_concrete_function(*specs)
    module = parsed(function.experimental_get_compiler_ir(*specs)(stage="stablehlo_serialized"))
    inputs = [
        Input(spec.name or f"arg{number}", tuple(spec.shape), dtypes.from_numpy(spec.dtype.as_numpy_dtype))
        for number, spec in enumerate(specs)
    ]
    variables = {id(variable.handle): variable for variable in concrete.variables}
    weights = [_weight(variables.get(id(held)), held) for held in concrete.captured_inputs]
    graph = import_module(module, [*inputs, *weights])
    parameters = tuple(
        Parameter(entry.name, "POSITIONAL_OR_KEYWORD", Structure("tensor", number))
        for number, entry in enumerate(inputs)
    )
    nest = concrete.structured_outputs
    numbered = tensorflow.nest.pack_sequence_as(nest, list(range(len(graph.outputs))))
    try:
        return replace(graph, interface=Interface(parameters, structure_of(numbered)))
    except NoFormError:
        return graph


def _weight(variable: Any, held: Any) -> Input:
    source = held if variable is None else variable
    data = np.asarray(source.numpy())
    name = "weight" if variable is None else str(variable.name).split(":", maxsplit=1)[0]
    return Input(name, data.shape, dtypes.from_numpy(data.dtype), Constant.of(data, name))
