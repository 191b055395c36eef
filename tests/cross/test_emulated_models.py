"""Whole small networks under qemu-user, against PyTorch."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch
from support import zoo
from support.emulation.cpus import CPUS
from support.emulation.emulator import Batch
from support.graph_runner import compare

from mansard.compiler import CompileOptions, compile_graph
from mansard.frontends import import_model
from mansard.placement import PlacementOptions

pytestmark = pytest.mark.emulation


def encoder() -> zoo.ZooModel:
    """A sentence encoder like MiniLM: one layer, four heads."""
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=200,
        hidden_size=96,
        num_hidden_layers=1,
        num_attention_heads=4,
        intermediate_size=160,
        max_position_embeddings=64,
    )
    model = BertModel(config, add_pooling_layer=False).eval()
    ids = torch.randint(0, 200, (2, 19))
    mask = torch.ones(2, 19, dtype=torch.int64)
    mask[1, 11:] = 0
    return zoo.ZooModel(zoo.Encoder(model, "last_hidden_state").eval(), (ids, mask))


def images() -> zoo.ZooModel:
    """MobileNetV2 at a third of its width with one block of each kind, 32 x 32."""
    return zoo.mobilenet(size=32, width=0.35, repeated=False)


def decoder() -> zoo.ZooModel:
    """A decoder like Qwen3 in bf16: grouped heads, rotary positions, RMS norms."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=300,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
    )
    model = Qwen3ForCausalLM(config).to(torch.bfloat16).eval()
    return zoo.ZooModel(
        zoo.Decoder(model, "logits", use_cache=False).eval(), (torch.randint(0, 300, (1, 13)),)
    )


# bf16 has 8 bits, and PyTorch rounds at other places than fused kernels do.
MODELS = {"encoder": (encoder, 1e-4), "images": (images, 1e-4), "decoder": (decoder, 3e-2)}


@functools.cache
def imported(name):
    """The graph, the inputs and what PyTorch gives."""
    model = MODELS[name][0]()
    with torch.no_grad():
        expected = model.module(*model.args)
    graph = import_model(model.module, model.args)
    return graph, [a.numpy() for a in model.args], expected.float().numpy()


# Code for x86-64-v2 and -v3 also runs without an emulator, as tests/kernels tests it.
@pytest.mark.parametrize("cpu", [cpu.param(slow=cpu.arch == "x86_64") for cpu in CPUS])
def test_models_match_pytorch(cpu):
    target, emulated = cpu.choice()
    batch = Batch(cpu.arch, emulated)
    names = list(MODELS) if cpu.thorough else ["decoder" if cpu.arch == "aarch64" else "images"]
    for name in names:
        graph, inputs, _ = imported(name)
        options = CompileOptions(targets=(target,), placement=PlacementOptions(fallback="error"), cache=False)
        model = compile_graph(graph, options)
        batch.call(model, batch.load(model), inputs)
    for name, (actual,) in zip(names, batch.run(), strict=True):
        expected, tolerance = imported(name)[2], MODELS[name][1]
        compare([np.asarray(actual, np.float32)], [expected], tolerance, tolerance)
