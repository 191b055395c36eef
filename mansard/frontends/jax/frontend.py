"""The frontend of JAX functions and exported artifacts."""

from __future__ import annotations

import functools
import types
from typing import TYPE_CHECKING, Any

from mansard.frontends.frontend import Frontend, has_base, has_suffix

if TYPE_CHECKING:
    from mansard.ir.graph import Graph

_KINDS = (
    "jaxlib._jax.PjitFunction", "jax._src.stages.Lowered", "jax._src.stages.Traced",
    "jax._src.export._export.Exported", "jax.export.Exported",
)  # fmt: skip


class JaxFrontend(Frontend):
    """Options are those of `mansard.frontends.jax.importer.import_jax`."""

    name = "jax"
    reads = "JAX (a function with example inputs, jax.jit, jax.export.Exported or its .jax file)"
    requires = "mansard[jax]"
    options = ("kwargs", "dims", "input_names")

    def accepts(self, model: Any) -> bool:
        """A function, what `jax.jit` makes of one, or an exported one."""
        if has_suffix(model, ".jax") or has_base(model, *_KINDS):
            return True
        return isinstance(model, (types.FunctionType, types.MethodType, functools.partial))

    def traces(self, model: Any) -> bool:
        """A function is lowered with example inputs; what is lowered or exported is not."""
        return has_base(model, _KINDS[0]) or isinstance(
            model, (types.FunctionType, types.MethodType, functools.partial)
        )

    def import_model(self, model: Any, example_inputs: Any = None, *, cache: bool, **options: Any) -> Graph:
        """Lower the function with JAX if it is one, and import the module."""
        from mansard.frontends.jax.importer import import_jax

        return import_jax(model, example_inputs, **options)


FRONTEND = JaxFrontend()
