"""The compiler: a model in, a plan with its executables and weights out."""

from mansard.compiler.compile import (
    compile_graph,
    compile_methods,
    compile_model,
    lower_graph,
    lower_model,
)
from mansard.compiler.compiled_model import CompiledModel
from mansard.compiler.options import CompileOptions

__all__ = [
    "CompileOptions",
    "CompiledModel",
    "compile_graph",
    "compile_methods",
    "compile_model",
    "lower_graph",
    "lower_model",
]
