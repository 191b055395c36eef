"""Checkpoints of language models: configuration and weights of a Hugging Face folder or a GGUF file."""

from mansard.frontends.decoders.checkpoint.checkpoint import Checkpoint
from mansard.frontends.decoders.checkpoint.opening import open_checkpoint

__all__ = ["Checkpoint", "open_checkpoint"]
