"""The frontend of TensorFlow models."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from mansard.frontends.frontend import Frontend, has_base

if TYPE_CHECKING:
    from mansard.ir.graph import Graph

_FUNCTION = "tensorflow.python.eager.polymorphic_function"
_KINDS = (
    f"{_FUNCTION}.polymorphic_function.Function", f"{_FUNCTION}.concrete_function.ConcreteFunction",
    "keras.src.models.model.Model", "tf_keras.src.engine.training.Model",
    "tensorflow.python.module.module.Module",
)  # fmt: skip


class TensorFlowFrontend(Frontend):
    """Options are those of `mansard.frontends.tensorflow.importer.import_tensorflow`."""

    name = "tensorflow"
    reads = "TensorFlow (SavedModel folder, .keras file, Keras model, tf.function)"
    requires = "mansard[compile] tensorflow"
    options = ("signature", "dims", "input_names")

    def accepts(self, model: Any) -> bool:
        """A folder with a ``saved_model.pb``, a ``.keras`` file, a Keras model, or a TensorFlow function."""
        if has_base(model, *_KINDS):
            return True
        if not isinstance(model, (str, Path)) or "\n" in str(model):
            return False
        try:
            return Path(model).suffix == ".keras" or (Path(model) / "saved_model.pb").is_file()
        except (OSError, ValueError):  # a text that no path can be
            return False

    def import_model(self, model: Any, example_inputs: Any = None, *, cache: bool, **options: Any) -> Graph:
        """Export the model as StableHLO in a process that has TensorFlow, and import the module."""
        from mansard.frontends.tensorflow.importer import import_tensorflow

        return import_tensorflow(model, example_inputs, **options)


FRONTEND = TensorFlowFrontend()
