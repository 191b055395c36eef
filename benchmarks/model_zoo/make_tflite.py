"""Write the architectures as ``.tflite`` files by TensorFlow's converter: of known sizes, and an open batch.

Runs in an environment of its own that has TensorFlow (`make model-conformance`), not in Mansard's.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import tensorflow as tf

from benchmarks.model_zoo.cases import BATCH, CASES, Case, value_of
from benchmarks.model_zoo.on_tensorflow import Layers


def converted(case: Case, *, batch: int | None) -> bytes:
    """The model's file, with a batch of 1 or an open one."""
    specs = []
    for x, array in zip(case.inputs, case.arrays(case.usual), strict=True):
        shape: Sequence[Any] = [batch if d == BATCH else value_of(d, case.usual) for d in x.shape]
        if x.image:
            shape = [shape[i] for i in (0, 2, 3, 1)]
        specs.append(tf.TensorSpec(shape, array.dtype, name=x.name))
    layers = Layers()
    function = tf.function(lambda *xs: case.architecture(layers, *xs), autograph=False)
    how = tf.lite.TFLiteConverter.from_concrete_functions([function.get_concrete_function(*specs)])
    return bytes(how.convert())


def main() -> None:
    """Write a file, or two, for each case."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    for case in CASES:
        if not re.search(options.only, case.name):
            continue
        for suffix, batch in (("", 1), ("-open", None)):
            if suffix and BATCH not in case.ranges:
                continue
            data = converted(case, batch=batch)
            (options.folder / f"{case.name}{suffix}.tflite").write_bytes(data)
            print(f"{case.name}{suffix}: {len(data):,} bytes", flush=True)


if __name__ == "__main__":
    main()
