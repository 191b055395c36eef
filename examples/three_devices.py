"""A model on three devices at once: a CPU, a GPU and a simulated NPU that takes the quantised products.

pip install ./examples/npu_plugin                  # the NPU is a plug-in, and a simulation
python examples/three_devices.py --model mobilenet_v2 --trace trace.json --html page.html

Devices that are not there are left out. A core of the host simulates the NPU in real time, after the model
of a slow chip; the software GPU of a machine without one computes on the same cores as the CPU.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # the simulated NPU is one thread
os.environ.setdefault("MANSARD_NPU_MODEL", "realtime")

import torch
import transformers
from quantise import quantise

import mansard
from mansard.cli.html.report import write_page
from mansard.cli.trace import trace_document

MIN_SHARE = 0.1
"""Of the dispatches, for every device: each would be idle where another one is faster at everything."""


class Output(torch.nn.Module):
    """One tensor of what a model of transformers returns."""

    def __init__(self, model: torch.nn.Module, field: str) -> None:
        super().__init__()
        self.model, self.field = model, field

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The field."""
        return getattr(self.model(x), self.field)


def mobilenet_v2() -> tuple[torch.nn.Module, torch.Tensor, str]:
    """MobileNetV2 for images of 224 x 224, random weights, quantised to int8."""
    config = transformers.MobileNetV2Config(num_labels=1000)
    model = Output(transformers.MobileNetV2ForImageClassification(config), "logits").eval()
    images = torch.randn(4, 3, 224, 224)
    with torch.no_grad():
        for layer in model.modules():  # batch norms of random weights need the statistics of some images
            if isinstance(layer, torch.nn.BatchNorm2d):
                layer.train()
                layer.momentum = 1.0
        model(images)
    return quantise(model, images.split(1)), images[:1], "f32"


def minilm() -> tuple[torch.nn.Module, torch.Tensor, str]:
    """MiniLM-L12 over 128 tokens, random weights; its products round their factors to bf16."""
    config = transformers.BertConfig(
        hidden_size=384, num_hidden_layers=12, num_attention_heads=12, intermediate_size=1536
    )
    model = Output(transformers.BertModel(config, add_pooling_layer=False), "last_hidden_state")
    return model.eval(), torch.randint(0, 30000, (1, 128)), "bf16"


MODELS = {"mobilenet_v2": mobilenet_v2, "minilm": minilm}


def present() -> list[str]:
    """The CPU, the first Vulkan device and the simulated NPU, as far as they are there."""
    infos = {info.driver: info for info in reversed(mansard.devices()) if info.supported}
    if "vulkan" not in infos:
        print("no Vulkan driver that Mansard can use (see `mansard devices`): going on without a GPU")
    if "npu" not in infos:
        print("no simulated NPU (pip install ./examples/npu_plugin): going on without")
    return [name for name in ("cpu", "vulkan", "npu") if name in infos]


def main() -> None:
    """Compile, compare with PyTorch, run requests in flight, report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=MODELS, default="minilm")
    parser.add_argument("--requests", type=int, default=9)
    parser.add_argument("--trace", type=Path, metavar="FILE", help="for ui.perfetto.dev")
    parser.add_argument("--html", type=Path, metavar="FILE", help="the graph and the time line as a page")
    options = parser.parse_args()

    torch.manual_seed(0)
    module, x, precision = MODELS[options.model]()
    devices = present()
    share = MIN_SHARE if len(devices) > 1 else 0.0
    placement = mansard.PlacementOptions(objective="throughput", min_share=share)
    model = mansard.compile(module, (x,), devices=devices, placement=placement, precision=precision)
    for name, count in model.explain().totals.items():
        print(f"{name}: {count} dispatches")
    with torch.no_grad():
        expected = module(x)
    error = (model(x) - expected).abs().max() / expected.abs().max()
    print(f"largest difference from PyTorch: {100 * error:.2f} % of the largest output")

    profile = model.profile(x, requests=options.requests, in_flight=4)
    lockstep = model.profile(x, requests=options.requests, in_flight=4, lockstep=True)
    for name, figures in profile.devices.items():
        print(f"{name}: busy {figures['busy_ms']:.1f} of {profile.latency_ms:.1f} ms")
    print(f"{len(devices)} devices busy at the same moment: {profile.all_busy_ms:.1f} ms in all")
    print(f"overlap efficiency {profile.efficiency:.2f}; lockstep takes {lockstep.latency_ms:.1f} ms")
    for slot in model.bind().slots:
        if slot.plan.driver == "npu" and (late := slot.device.overruns()).overruns:
            print(f"{slot.name}: the host was late {late.overruns} times of {late.commands}")
    if options.trace is not None:
        document = trace_document(profile.rows, {}, options.model, profile.all_busy)
        options.trace.write_text(json.dumps(document))
    if options.html is not None:
        write_page(options.html, model.plan, profile.timeline())


if __name__ == "__main__":
    if importlib.util.find_spec("transformers") is None:
        raise SystemExit("this example needs transformers: pip install transformers")
    main()
