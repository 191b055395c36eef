"""Opening a file of weights: mapped, with errors that name it."""

from __future__ import annotations

from pathlib import Path

from mansard.artifact.mapped_file import Bytes, MappedFile
from mansard.errors import ArtifactError, ImportModelError

__all__ = ["Bytes", "map_source"]


def map_source(path: Path, what: str) -> Bytes:
    """The bytes of a file, mapped copy-on-write; the arrays over them keep the mapping.

    Raises ImportModelError for what is missing, empty, not a regular file or not readable; ``what`` is what
    the file should be, such as "a GGUF file".
    """
    try:
        if path.is_file() and path.stat().st_size == 0:
            raise ImportModelError(f"{path} is empty, not {what}")
        return MappedFile(path).data
    except (ArtifactError, OSError) as error:
        raise ImportModelError(str(error)) from error
