"""The compiler: a model in, a plan with its executables and weights out."""

from mansard.compiler.compile import CompiledModel, CompileOptions, compile_graph, compile_model

__all__ = ["CompileOptions", "CompiledModel", "compile_graph", "compile_model"]
