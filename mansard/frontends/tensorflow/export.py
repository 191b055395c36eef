"""Exports a SavedModel or a ``.keras`` file as StableHLO: a program for an interpreter that has TensorFlow.

Run as ``python export.py MODEL SIGNATURE OUTPUT``; it imports nothing of Mansard. Weights go into the
bytecode as bytes. What is wrong is said on the last line of standard error.
"""

import os
import sys
import tempfile

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


def main() -> int:
    """Export; the exit code is 1 for a model that TensorFlow cannot read or export."""
    model, signature, output = sys.argv[1:4]
    try:
        from tensorflow.compiler.mlir.tensorflow_to_stablehlo.python import (
            pywrap_tensorflow_to_stablehlo as exporter,
        )
    except ImportError as error:
        print(f"no TensorFlow with an exporter of StableHLO (2.17 or newer): {error}", file=sys.stderr)
        return 2
    try:
        with tempfile.TemporaryDirectory() as folder:
            if model.endswith(".keras"):
                import keras

                keras.saving.load_model(model, compile=False).export(folder, verbose=False)
                model = folder
            module = exporter.savedmodel_to_stablehlo(model, [signature], ["serve"], "")
    except Exception as error:  # whatever TensorFlow or Keras raise
        print(" ".join(f"{type(error).__name__}: {error}".split()), file=sys.stderr)
        return 1
    with open(output, "wb") as file:  # noqa: PTH123  # no need of more than the builtins
        file.write(module)
    return 0


if __name__ == "__main__":
    sys.exit(main())
