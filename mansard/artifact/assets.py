"""Assets of an artifact: files that travel with a model for the programs that use it, such as a tokenizer.

The runtime reads none of them. Each is an entry of the container, with a hash in the manifest that is checked
when the asset is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping

from mansard.arguments import shown
from mansard.errors import ArtifactError

PREFIX = "assets/"
"""With what the names of their entries begin."""


def checked_assets(assets: Mapping[str, bytes] | None) -> dict[str, bytes]:
    """The assets that a user gives by name. Raises ArtifactError for a name that is no relative path, and for
    content that is not bytes."""
    if assets is not None and not isinstance(assets, Mapping):
        raise ArtifactError(f"assets are a dict of bytes by name, not a {type(assets).__name__}")
    for name, content in (assets or {}).items():
        if not _is_relative_path(name):
            raise ArtifactError(f"an asset has a relative path as its name ('labels.txt'), not {shown(name)}")
        if not isinstance(content, bytes):
            raise ArtifactError(f"the asset {name!r} is a {type(content).__name__}, not bytes")
    return dict(assets or {})


def _is_relative_path(name: object) -> bool:
    if not isinstance(name, str) or not name.isprintable() or "\\" in name:
        return False
    return all(part not in ("", ".", "..") for part in name.split("/"))
