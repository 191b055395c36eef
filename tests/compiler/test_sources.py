"""The sources of kernels in an artifact: read back, or refused whatever they are."""

from __future__ import annotations

import json
import zlib
from typing import Any

import pytest
import torch

import mansard
from mansard.compiler.sources import sources_from_bytes
from mansard.errors import ArtifactError

ODD = (None, True, -1, 10**400, 1e999, "", "\ud800", [], [None], {}, {"": 1}, [[[[[]]]]])


@pytest.fixture(scope="module")
def rows() -> Any:
    layer = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.LayerNorm(64))
    with mansard.compile(layer, (torch.zeros(2, 64),), devices="cpu") as model:
        return json.loads(zlib.decompress(model._resources.sources()))


def packed(data: Any) -> bytes:
    return zlib.compress(json.dumps(data).encode())


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, item in items for place in places(item, (*path, key)))]


def replaced(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    items = value.copy()
    items[path[0]] = replaced(value[path[0]], path[1:], new)
    return items


def test_sources_come_back(rows: Any) -> None:
    sources = sources_from_bytes(packed(rows))
    assert [source.name for source in sources] == [row["name"] for row in rows]
    assert all(source.dispatch().name for source in sources)


def test_odd_sources_are_refused(rows: Any) -> None:
    """Each part of the sources in turn is replaced by an odd value."""
    refused = 0
    parts = [([row], place) for row in rows for place in places([row])]
    for number, (alone, place) in enumerate(parts):
        try:
            for source in sources_from_bytes(packed(replaced(alone, place, ODD[number % len(ODD)]))):
                source.dispatch()
        except ArtifactError as error:
            assert len(str(error)) < 500
            refused += 1
    assert refused > 100


@pytest.mark.parametrize(
    "data", [b"", b"x", zlib.compress(b"[" * 100_000), zlib.compress(b"{}")[:-1], zlib.compress(b"3")]
)
def test_what_is_no_source_is_refused(data: bytes) -> None:
    with pytest.raises(ArtifactError, match="sources cannot be read"):
        sources_from_bytes(data)
