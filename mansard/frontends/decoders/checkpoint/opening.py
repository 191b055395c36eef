"""Which reader a path is for."""

from __future__ import annotations

import os
from pathlib import Path

from mansard.errors import ImportModelError
from mansard.frontends.decoders.checkpoint.checkpoint import Checkpoint
from mansard.frontends.decoders.checkpoint.folder import FolderCheckpoint


def open_checkpoint(path: str | os.PathLike[str]) -> Checkpoint:
    """The checkpoint in a Hugging Face folder: ``config.json`` and safetensors, in one file or in shards.

    Headers are read and checked; weights stay on disk. Raises ImportModelError that names the file and what
    is wrong with it.
    """
    place = Path(path)
    if place.is_dir():
        return FolderCheckpoint(place)
    if not place.exists():
        raise ImportModelError(f"there is no folder or file {place}")
    raise ImportModelError(f"{place} is not a folder with a config.json")
