"""What swapping gains: prefill of a decoder with four times the weights an NPU holds, by a chip's figures.

    pip install ./examples/npu_plugin
    python -m benchmarks.placement.swapping [--chip snapdragon-8-gen-3] [--chunks 32,128,512]
        [--links 30,10,3] [--markdown FILE]

The NPU is the graph NPU of ``examples/npu_plugin`` with the rates of the chip's NPU, which computes floats in
f16, and with memory for a quarter of the weights; decoding stays on the CPU. Compared are the prefill of one
piece of a prompt on the CPU alone, with the NPU as far as its memory goes, and with programs that take turns
there, for links of some GB/s between the two memories. Nothing runs: all times are those of the cost model.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import numpy as np
from safetensors.numpy import save_file

import mansard
from mansard.compiler.targets import backend
from mansard.ir.dispatch import Dispatch
from mansard.ir.graph import Graph
from mansard.placement import estimate_work
from mansard.placement.cost import seconds
from mansard.plan.plan import Prediction
from mansard.targets.profile import DeviceProfile
from mansard.targets.socs import load_soc

LAYERS, HIDDEN, INNER, VOCABULARY = 4, 512, 1408, 1024


@dataclass(frozen=True)
class Case:
    """The devices of a prefill, whether the NPU swaps, and bytes per second of its link."""

    name: str
    devices: tuple[str, ...]
    swaps: bool = False
    link: float = 0.0


@dataclass(frozen=True)
class Row:
    """What is predicted of a case: the prefill, and how many of its dispatches are on the NPU."""

    case: Case
    chunk: int
    prediction: Prediction
    on_npu: int
    others: int


def write_decoder(folder: Path) -> int:
    """A Llama of random weights in f32; returns their bytes."""
    rng = np.random.default_rng(0)
    shapes = {"model.embed_tokens.weight": (VOCABULARY, HIDDEN), "lm_head.weight": (VOCABULARY, HIDDEN)}
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}"
        for name in "qkvo":
            shapes[f"{prefix}.self_attn.{name}_proj.weight"] = (HIDDEN, HIDDEN)
        for name, shape in (("gate", (INNER, HIDDEN)), ("up", (INNER, HIDDEN)), ("down", (HIDDEN, INNER))):
            shapes[f"{prefix}.mlp.{name}_proj.weight"] = shape
    tensors = {name: rng.standard_normal(shape).astype(np.float32) * 0.02 for name, shape in shapes.items()}
    ones = np.ones(HIDDEN, np.float32)
    norms = ("input_layernorm", "post_attention_layernorm")
    tensors |= {f"model.layers.{n}.{norm}.weight": ones for n in range(LAYERS) for norm in norms}
    tensors["model.norm.weight"] = ones
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    config = {
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
    }
    (folder / "config.json").write_text(json.dumps(config))
    return sum(tensor.nbytes for tensor in tensors.values())


def profiles_of(chip: str, link: float) -> tuple[DeviceProfile, DeviceProfile]:
    """The chip's CPU, and its NPU with a memory of its own behind a link."""
    soc = load_soc(chip)
    npu = soc.devices["npu"]
    rates = {"f32": npu.rates.get("f16", npu.rates["f32"])}
    own_link = dataclasses.replace(npu.link, bytes_per_second=link or npu.link.bytes_per_second)
    return soc.devices["cpu"], dataclasses.replace(
        npu, name="gnpu", rates=rates, link=own_link, links={}, unified=False
    )


@contextlib.contextmanager
def priced_as(chip: str, case: Case, memory: int) -> Iterator[None]:
    """The figures of a chip for the CPU and the graph NPU."""
    from mansard_npu_graph.device import DRIVER

    cpu, npu = profiles_of(chip, case.link)
    graph_npu = backend("gnpu")

    def region_seconds(region: Graph, target: object) -> float:
        return seconds(
            estimate_work(Dispatch(region.name, region.ops, region.inputs, region.outputs, ())), npu
        )

    with contextlib.ExitStack() as patched:
        for owner, name, value in (
            (backend("cpu"), "profile", lambda text, device: cpu),
            (graph_npu, "profile", lambda text, device: npu),
            (graph_npu, "estimate_region", region_seconds),
            (graph_npu, "swaps_programs", case.swaps),
            (DRIVER, "memory", memory),
        ):
            patched.enter_context(mock.patch.object(owner, name, value))
        patched.enter_context(mock.patch("mansard.compiler.targets.calibrated", lambda device: None))
        yield


def predict(folder: Path, chip: str, case: Case, chunk: int, memory: int) -> Row:
    """The prediction of a case."""
    wanted = (
        {"method_devices": {"prefill": case.devices[0], "decode": "cpu"}} if len(case.devices) > 1 else {}
    )
    with (
        priced_as(chip, case, memory),
        mansard.load_lm(
            folder,
            context=2 * chunk,
            chunk=chunk,
            fixed_chunk=True,
            dtype="f32",
            devices=case.devices,
            **wanted,
        ) as lm,
    ):
        plan = lm.model.plan.methods["prefill"]
    assert plan.prediction is not None
    on_npu = sum(decision.device == "gnpu" for decision in plan.decisions)
    return Row(case, chunk, plan.prediction, on_npu, len(plan.decisions) - on_npu)


def table(rows: list[Row]) -> str:
    """The rows as Markdown."""
    lines = [
        "| tokens | devices | link GB/s | prefill ms | of the CPU's | steps on the NPU | loaded MB a call |",
        "| ---: | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    alone = {row.chunk: row.prediction.latency_ms for row in rows if len(row.case.devices) == 1}
    for row in rows:
        link = f"{row.case.link / 1e9:.0f}" if row.case.link else ""
        gain = f"{alone[row.chunk] / row.prediction.latency_ms:.2f}"
        loaded = f"{row.prediction.loaded_bytes / 1e6:.1f}"
        lines.append(
            f"| {row.chunk} | {row.case.name} | {link} | {row.prediction.latency_ms:.2f} | {gain} | "
            f"{row.on_npu} of {row.on_npu + row.others} | {loaded} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Predict all cases and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--chip", default="snapdragon-8-gen-3")
    parser.add_argument("--chunks", default="32,128,512")
    parser.add_argument("--links", default="30,10,3", help="GB/s")
    parser.add_argument("--markdown", type=Path)
    options = parser.parse_args()
    links = [1e9 * float(link) for link in options.links.split(",")]
    cases = [Case("CPU", ("cpu",)), Case("CPU and NPU", ("gnpu", "cpu"), link=links[0])]
    cases += [Case("CPU and NPU, swapping", ("gnpu", "cpu"), True, link) for link in links]
    rows = []
    with tempfile.TemporaryDirectory() as name:
        total = write_decoder(Path(name))
        for chunk in map(int, options.chunks.split(",")):
            for case in cases:
                rows.append(predict(Path(name), options.chip, case, chunk, total // 4))
                print(table(rows).splitlines()[-1], flush=True)
    print(f"weights {total / 1e6:.1f} MB, memory of the NPU {total / 4e6:.1f} MB; {options.chip}")
    print(table(rows))
    if options.markdown:
        options.markdown.write_text(table(rows) + "\n")


if __name__ == "__main__":
    main()
