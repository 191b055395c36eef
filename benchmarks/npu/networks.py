"""The networks in int8: seeded weights, heads fitted to textures, statistics and ranges from such images;
MiniLM with the weights of all-MiniLM-L6-v2, and ranges from text."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from tokenizers import Tokenizer
from torch import nn

from benchmarks.harness import networks
from benchmarks.harness.paths import ROOT
from benchmarks.npu.fitted import DATA_SEED, TEST_SEED, fitted, labelled
from mansard.demo.encoder import model_folder

NAMES = ("mobilenet_v2", "resnet50", "deeplabv3", "minilm")
IMAGES = {"mobilenet_v2": 12, "resnet50": 12, "deeplabv3": 8}
TEXTS, TOKENS = 4, 128
SMOOTHING = 0.5
"""Of the transformer's channels."""


def network(name: str) -> tuple[nn.Module, list[tuple[torch.Tensor]]]:
    """A network of floats, and the inputs that it is calibrated with.

    Those of images tell a dozen classes of textures (of each pixel, DeepLabV3); MiniLM is the demo's
    all-MiniLM-L6-v2, which gives a vector for each token.
    """
    if name not in networks.PIXELS:
        bert = transformers.AutoModel.from_pretrained(
            model_folder(), attn_implementation="sdpa", local_files_only=True
        )
        return networks.Forward(bert).eval(), [(x,) for x in texts(TEXTS).split(1)]
    pixels, _ = labelled(name, IMAGES[name], DATA_SEED)
    return networks.Forward(fitted(name)).eval(), [(x,) for x in pixels.split(1)]


def texts(count: int) -> torch.Tensor:
    """Token ids (count, TOKENS) of consecutive pieces of docs/architecture.md, without padding."""
    tokenizer = Tokenizer.from_file(str(model_folder() / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    text = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    pieces = torch.tensor(tokenizer.encode(text, add_special_tokens=False).ids[: count * (TOKENS - 2)])
    first, last = (torch.full((count, 1), tokenizer.token_to_id(special)) for special in ("[CLS]", "[SEP]"))
    return torch.cat((first, pieces.reshape(count, TOKENS - 2), last), 1)


def tests(name: str, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Images that a network was neither fitted to nor calibrated with, and their classes."""
    return labelled(name, count, TEST_SEED)


def quantised(name: str) -> tuple[Any, nn.Module, list[tuple[torch.Tensor]]]:
    """A network in int8 as `mansard.compile` takes it, the same of floats, and inputs."""
    import mansard

    module, data = network(name)
    transformer = {"attention": True, "smoothing": SMOOTHING} if name == "minilm" else {}
    return mansard.quantize(module, data, scheme="int8", **transformer), module, data
