"""The frontend of PyTorch models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mansard.frontends.frontend import Frontend, has_base, has_suffix

if TYPE_CHECKING:
    from mansard.ir.graph import Graph


class PyTorchFrontend(Frontend):
    """Options are those of `mansard.frontends.pytorch.importer.import_torch`."""

    name = "pytorch"
    reads = "PyTorch (torch.nn.Module, torch.export.ExportedProgram, .pt2 file)"
    requires = "mansard[torch]"
    options = ("kwargs", "dynamic_shapes", "input_names")

    def accepts(self, model: Any) -> bool:
        """A module or an exported program, recognised by class names, or a saved program."""
        return has_suffix(model, ".pt2") or has_base(
            model, "torch.nn.modules.module.Module", "torch.export.exported_program.ExportedProgram"
        )

    def traces(self, model: Any) -> bool:
        """A module is exported with example inputs; a program is not."""
        return has_base(model, "torch.nn.modules.module.Module")

    def import_model(self, model: Any, example_inputs: Any = None, *, cache: bool, **options: Any) -> Graph:
        """Export the model if it is a module, and import the program."""
        from mansard.frontends.pytorch.importer import import_torch

        return import_torch(model, example_inputs, cache=cache, **options)


FRONTEND = PyTorchFrontend()
