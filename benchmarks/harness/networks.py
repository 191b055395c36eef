"""The networks: transformers configurations with random weights (seed 0), and small ones for the machine.

Trained weights would not change a time: no kernel here depends on the values, as long as activations keep a
usual scale. That is why batch normalisation gets its statistics from one random batch.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch import nn
from transformers.cache_utils import DynamicCache

from benchmarks.harness.cases import CACHED, Case, first

PIXELS = {"mobilenet_v2": 224, "resnet50": 224, "deeplabv3": 257}
TOKENS = 128


def network(name: str) -> nn.Module:
    """The module with seed-0 weights, in eval mode."""
    torch.manual_seed(0)
    module = _BUILDERS[name]()
    # IREE's importer reads every buffer from the state dict, and so does a module made without memory.
    for part in module.modules():
        part._non_persistent_buffers_set.clear()
    return module.eval()


def entry(case: Case, work: Path) -> nn.Module:
    """The case as a module of tensors in, a tensor or a tuple of tensors out, with the prepared weights."""
    with torch.device("meta"):
        module = network(case.network)
    module.load_state_dict(torch.load(case.weights(work)), assign=True)
    if getattr(getattr(module, "config", None), "tie_word_embeddings", False) and hasattr(module, "lm_head"):
        module.lm_head.weight = module.model.embed_tokens.weight  # assigning has made two of one
    wrapper = {"forward": Forward, "prefill": Prefill, "decode": Decode}[case.entry]
    return wrapper(module).eval()


def tensors(case: Case, arrays: list[np.ndarray]) -> tuple[torch.Tensor, ...]:
    """The inputs as tensors of the case's element type."""
    dtype = torch.float32 if case.dtype == "int8" else getattr(torch, case.dtype)
    converted = [torch.from_numpy(array) for array in arrays]
    return tuple(t.to(dtype) if t.is_floating_point() else t for t in converted)


class Forward(nn.Module):
    """One tensor in, the named output out."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        outputs = self.module(x)
        if isinstance(outputs, torch.Tensor):
            return outputs
        return outputs.logits if "logits" in outputs else outputs.last_hidden_state


class Prefill(nn.Module):
    """Token ids in, logits of the last one out."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, prompt: torch.Tensor) -> torch.Tensor:
        # A mask given as absent leaves plain causal attention in the exported graph.
        mask = {"full_attention": None}
        return self.module(prompt, attention_mask=mask, use_cache=False, logits_to_keep=1).logits


class Decode(nn.Module):
    """One token id and the cache in; logits, and the token's own rows of the cache, out.

    Keys and values are (layers, 1, heads, cached tokens, head size); the rows have one token.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(
        self, token: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        cache = DynamicCache(config=self.module.config)
        for number, layer in enumerate(cache.layers):
            layer.lazy_initialization(keys[number], values[number])
            layer.keys, layer.values = keys[number], values[number]
        logits = self.module(token, past_key_values=cache, use_cache=True, logits_to_keep=1).logits
        new_keys = torch.stack([layer.keys[:, :, -1:] for layer in cache.layers])
        new_values = torch.stack([layer.values[:, :, -1:] for layer in cache.layers])
        return logits, new_keys, new_values


def prepare(name: str, work: Path) -> None:
    """Write a network's weights, inputs and reference outputs into ``work / name``."""
    place = work / name
    place.mkdir(parents=True, exist_ok=True)
    module = network(name)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        if name == "qwen":
            _prepare_decoder(module, place, generator)
            return
        x = _example(name, generator)
        if name in PIXELS:
            set_statistics(module, x)
            x = x[:1].contiguous()
        _write(place, x=x, reference_forward=first(Forward(module)(x)))
    torch.save(module.state_dict(), place / "float32.pt")


def _prepare_decoder(module: Any, place: Path, generator: torch.Generator) -> None:
    module = module.to(torch.bfloat16).float()  # every element type starts from the same values
    ids = torch.randint(0, module.config.vocab_size, (1, CACHED + 1), generator=generator)
    prompt, token = ids[:, :CACHED], ids[:, CACHED:]
    outputs = module(prompt, use_cache=True)
    cache = outputs.past_key_values
    _write(
        place,
        prompt=prompt,
        next=token,
        keys=torch.stack([layer.keys for layer in cache.layers]),
        values=torch.stack([layer.values for layer in cache.layers]),
        reference_prefill=outputs.logits[:, -1:],
        reference_decode=module(token, past_key_values=cache, use_cache=True).logits,
    )
    torch.save(module.state_dict(), place / "float32.pt")
    torch.save(module.to(torch.bfloat16).state_dict(), place / "bfloat16.pt")


def _write(place: Path, **arrays: torch.Tensor) -> None:
    for name, tensor in arrays.items():
        np.save(place / f"{name}.npy", tensor.numpy())


def _example(name: str, generator: torch.Generator) -> torch.Tensor:
    if name == "minilm":
        return torch.randint(0, 30000, (1, TOKENS), generator=generator)
    if name in PIXELS:
        return torch.randn(4, 3, PIXELS[name], PIXELS[name], generator=generator)
    rows, columns = {"gemm_1024": (1024, 1024), "gemv_256mib": (1, 8192)}[name]
    return torch.randn(rows, columns, generator=generator)


def set_statistics(module: nn.Module, images: torch.Tensor) -> None:
    """Set the statistics of every batch normalisation to those of these images."""
    norms = [part for part in module.modules() if isinstance(part, nn.BatchNorm2d)]
    for norm in norms:
        norm.train()
        norm.momentum = 1.0
    module(images)
    module.eval()


def _mobilenet() -> nn.Module:
    return transformers.MobileNetV2ForImageClassification(transformers.MobileNetV2Config(num_labels=1000))


def _deeplab() -> nn.Module:
    config = transformers.MobileNetV2Config(num_labels=21, output_stride=8, image_size=257)
    return transformers.MobileNetV2ForSemanticSegmentation(config)


def _resnet() -> nn.Module:
    return transformers.ResNetForImageClassification(transformers.ResNetConfig(num_labels=1000))


def _minilm() -> nn.Module:
    config = transformers.BertConfig(
        hidden_size=384, num_hidden_layers=12, num_attention_heads=12, intermediate_size=1536
    )
    return transformers.BertModel(config, add_pooling_layer=False)


def _qwen() -> nn.Module:
    """The shapes of Qwen3-0.6B."""
    config = transformers.Qwen3Config(
        vocab_size=151936,
        hidden_size=1024,
        intermediate_size=3072,
        num_hidden_layers=28,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=128,
        tie_word_embeddings=True,
        rms_norm_eps=1e-6,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
    )
    return transformers.Qwen3ForCausalLM(config)


def _linear(size: int) -> nn.Module:
    """One matrix: with 1024 rows of input a GEMM, with one row a GEMV that reads more than caches hold."""
    return nn.Linear(size, size, bias=False)


_BUILDERS = {
    "mobilenet_v2": _mobilenet,
    "deeplabv3": _deeplab,
    "resnet50": _resnet,
    "minilm": _minilm,
    "qwen": _qwen,
    "gemm_1024": lambda: _linear(1024),
    "gemv_256mib": lambda: _linear(8192),
}
