"""How close a quantised encoder of sentences is to the float model: `mansard.quantize` beside ONNX Runtime's
quantiser.

    pip install 'mansard[bench]'
    python -m benchmarks.quantisation [--row TEXT ...] [--markdown FILE] [--json FILE]

all-MiniLM-L6-v2 is calibrated with 32 sentences; figures are of the embeddings of 32 others: the mean and
the lowest cosine to those of the float model. Each setting has all ops that it can in integers, or products
alone. Nothing is timed.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import importlib.metadata
import json
import platform
import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import numpy.typing as npt
import torch

import mansard
from benchmarks.harness.quantised import PRODUCTS, quantise_file
from benchmarks.quantisation.sentences import CALIBRATION, TEST
from mansard import Dim
from mansard.demo.encoder import MAX_TOKENS, build_encoder, reference, tokenize
from mansard.quantisation import quantiser

Floats = npt.NDArray[np.float32]
Call = tuple[torch.Tensor, torch.Tensor]
"""Token ids and mask of one sentence, without padding."""
Encoder = Callable[[Call], Floats]


@dataclasses.dataclass(frozen=True)
class Row:
    """Cosines by one setting, mean and lowest: with all ops quantised, or products alone."""

    name: str
    everywhere: tuple[float, float] | None = None
    products: tuple[float, float] | None = None


def calls(sentences: tuple[str, ...]) -> list[Call]:
    """One call for each sentence."""
    batches = (tokenize([sentence]) for sentence in sentences)
    return [(torch.from_numpy(batch.ids), torch.from_numpy(batch.mask)) for batch in batches]


def with_mansard(module: Any, scheme: str, *, norm_rule: bool = True, **options: Any) -> Encoder:
    """The encoder by `mansard.quantize`; without ``norm_rule`` ranges before norms are as all others."""
    tokens = Dim("tokens", 3, MAX_TOKENS)
    shapes = {"ids": {1: tokens}, "mask": {1: tokens}}
    rule = nullcontext() if norm_rule else mock.patch.object(quantiser, "normalised", lambda graph: {})
    with rule:
        quantised = mansard.quantize(module, calls(CALIBRATION), scheme, dynamic_shapes=shapes, **options)
    model = mansard.compile(quantised, devices="cpu")
    return lambda call: np.asarray(model(*call))


def with_onnxruntime(module: Any, scheme: str) -> Encoder:
    """The encoder by ONNX Runtime's `quantize_static`."""
    import onnxruntime

    names = ("ids", "mask")
    with tempfile.TemporaryDirectory() as folder:
        plain, path = Path(folder, "plain.onnx"), Path(folder, "int8.onnx")
        axes = {name: {1: "tokens"} for name in names}
        torch.onnx.export(
            module, calls(CALIBRATION)[0], str(plain), dynamo=False, opset_version=17,
            input_names=list(names), dynamic_axes=axes,
        )  # fmt: skip
        data = [{n: x.numpy() for n, x in zip(names, call, strict=True)} for call in calls(CALIBRATION)]
        kinds = PRODUCTS if scheme == "int8-products" else None
        quantise_file(plain, path, data, op_types=kinds)
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])

    def run(call: Call) -> Floats:
        (result,) = session.run(None, {n: x.numpy() for n, x in zip(names, call, strict=True)})
        return np.asarray(result, np.float32)

    return run


SETTINGS: dict[str, tuple[Callable[..., Encoder], tuple[str, ...]]] = {
    "`mansard.quantize`": (with_mansard, ("int8", "int8-products")),
    "… `smoothing=0.5`": (partial(with_mansard, smoothing=0.5), ("int8", "int8-products")),
    "… `smoothing=0.75`": (partial(with_mansard, smoothing=0.75), ("int8", "int8-products")),
    '… `scheme="mixed"`': (with_mansard, ("mixed",)),
    '… `scheme="mixed", smoothing=0.75`': (partial(with_mansard, smoothing=0.75), ("mixed",)),
    "… without the rule for norms": (partial(with_mansard, norm_rule=False), ("int8",)),
    '… `ranges="minmax"`': (partial(with_mansard, ranges="minmax"), ("int8", "int8-products")),
    "ONNX Runtime, `MinMax`": (with_onnxruntime, ("int8", "int8-products")),
}
"""By name what makes an encoder, and the schemes that it is measured with."""


def measure(name: str, module: Any) -> Row:
    """The figures of a setting."""
    make, schemes = SETTINGS[name]
    wanted = [reference(module, tokenize([sentence])) for sentence in TEST]
    figures: dict[str, tuple[float, float]] = {}
    for scheme in schemes:
        encoder = make(module, scheme)
        cosines = [_cosine(encoder(call), vector) for call, vector in zip(calls(TEST), wanted, strict=True)]
        figures[scheme] = float(np.mean(cosines)), min(cosines)
    return Row(name, figures.get("int8", figures.get("mixed")), figures.get("int8-products"))


def _cosine(a: Floats, b: Floats) -> float:
    return float((a * b).sum() / (np.linalg.norm(a) * np.linalg.norm(b)))


def table(rows: list[Row]) -> str:
    """The rows for people."""
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("onnxruntime", "torch"))
    lines = [
        "# A quantised encoder of sentences",
        "",
        f"{datetime.date.today()}, {platform.machine()}, {versions}.",
        "",
        "    python -m benchmarks.quantisation --markdown benchmarks/results/MACHINE/quantisation.md",
        "",
        "Cosine of the embeddings of 32 sentences to those of the float model (all-MiniLM-L6-v2), mean and",
        "lowest, with ranges from 32 others (benchmarks/quantisation/sentences.py). ONNX Runtime's are by",
        "`quantize_static` in QDQ form with u8 values and i8 weights by channel.",
        "",
        "| | all ops: mean | lowest | products only: mean | lowest |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for row in rows:
        cells = [
            f"{x:.3f}" if pair else "" for pair in (row.everywhere, row.products) for x in pair or (0, 0)
        ]
        lines.append(f"| {' | '.join((row.name, *cells))} |")
    return "\n".join([*lines, ""])


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--row", action="append", default=[], help="only rows whose name contains this")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    chosen = parser.parse_args()
    module, rows = build_encoder("eager"), []
    for name in SETTINGS:
        if not chosen.row or any(text in name for text in chosen.row):
            rows.append(measure(name, module))
            print(rows[-1], flush=True)
            if chosen.json:
                chosen.json.write_text(json.dumps([dataclasses.asdict(row) for row in rows], indent=1))
            if chosen.markdown:
                chosen.markdown.write_text(table(rows))
    print(table(rows))


if __name__ == "__main__":
    main()
