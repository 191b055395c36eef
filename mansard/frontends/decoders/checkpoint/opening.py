"""Which reader a path is for."""

from __future__ import annotations

import os
from pathlib import Path

from mansard.dtypes import DType
from mansard.errors import ImportModelError
from mansard.frontends.decoders.checkpoint.checkpoint import Checkpoint
from mansard.frontends.decoders.checkpoint.folder import FolderCheckpoint
from mansard.frontends.decoders.checkpoint.gguf_checkpoint import GgufCheckpoint


def open_checkpoint(path: str | os.PathLike[str], dtype: DType | None = None) -> Checkpoint:
    """The checkpoint in a Hugging Face folder (``config.json``, and safetensors in one file or in shards) or
    in a GGUF file (of several parts, the first).

    Floating-point tensors are offered in ``dtype``. By default those of a folder are as they are stored;
    those of a GGUF file have the type of most of its matrices, bf16 where these are quantised.

    Headers are read and checked; weights stay on disk. Raises ImportModelError that names the file and what
    is wrong with it.
    """
    place = Path(path)
    if place.is_dir():
        return FolderCheckpoint(place, dtype)
    if not place.exists():
        raise ImportModelError(f"there is no folder or file {place}")
    with place.open("rb") as file:
        if place.suffix.lower() != ".gguf" and file.read(4) != b"GGUF":
            raise ImportModelError(f"{place} is neither a folder with a config.json nor a GGUF file")
    return GgufCheckpoint(place, dtype)
