"""Hugging Face folders: ``config.json`` and safetensors, in one file or in shards named by an index."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mansard.dtypes import DType
from mansard.errors import ImportModelError
from mansard.formats.safetensors_file import StoredTensor, read_safetensors
from mansard.frontends.decoders.checkpoint.checkpoint import Checkpoint, missing_tensor, offered_dtype
from mansard.frontends.decoders.checkpoint.folder_config import read_config
from mansard.frontends.decoders.checkpoint.layouts import Source, current_layout
from mansard.ir.types import Constant, TensorType

Array = npt.NDArray[np.generic]

_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
_OTHER_WEIGHTS = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.h5", "*.msgpack")


class FolderCheckpoint(Checkpoint):
    """A folder as ``transformers`` writes it. Tensors are mapped; experts that are stored one by one are
    stacked when they are loaded."""

    def __init__(self, path: Path, dtype: DType | None = None) -> None:
        self.path, self._dtype = path, dtype
        self.config, self.generation = read_config(path)
        self._tensors = _read_tensors(path)
        self._sources = current_layout(self._tensors, self.config)
        self._closed = False
        self._constants: dict[str, Constant] = {}
        self.names = frozenset(self._sources)

    def tensor_type(self, name: str) -> TensorType:
        """The shape as stored, of stacked experts that of the stack, and the stored or the chosen dtype."""
        stored = self._stored_type(name)
        return TensorType(stored.shape, offered_dtype(name, stored.dtype, self._dtype))

    def _stored_type(self, name: str) -> TensorType:
        source = self._source(name)
        parts = [[self._stored(stored) for stored in column] for column in source.columns]
        first = parts[0][0]
        if first.dtype is None:
            raise ImportModelError(
                f"tensor {name!r} of {self.path} has element type {first.type_name}, which is not supported"
            )
        if not source.stacked:
            return TensorType(first.shape, first.dtype)
        for column, names in zip(parts, source.columns, strict=True):
            for tensor, stored in zip(column, names, strict=True):
                if (tensor.dtype, tensor.shape) != (first.dtype, column[0].shape) or len(tensor.shape) != 2:
                    raise ImportModelError(
                        f"experts of {self.path} differ: {stored} is {tensor.type_name}{list(tensor.shape)}, "
                        f"{source.columns[0][0]} {first.type_name}{list(first.shape)}"
                    )
        rows = sum(column[0].shape[0] for column in parts)
        return TensorType((len(parts[0]), rows, first.shape[1]), first.dtype)

    def constant(self, name: str) -> Constant:
        """A view of the mapped file, or for stacked experts a new array."""
        self.tensor_type(name)
        return self._constants.setdefault(name, Constant(name, functools.partial(self._load, name)))

    def close(self) -> None:
        """Drop the mapped shards."""
        self._tensors, self._closed = {}, True

    def _source(self, name: str) -> Source:
        if name not in self._sources:
            raise missing_tensor(self.path, name, self.names)
        return self._sources[name]

    def _stored(self, name: str) -> StoredTensor:
        if self._closed:
            raise ImportModelError(f"the checkpoint {self.path} is closed")
        return self._tensors[name]

    def _load(self, name: str) -> Array:
        source, dtype = self._source(name), self._stored_type(name).dtype.numpy
        columns = [[self._stored(part) for part in column] for column in source.columns]
        arrays = [[part.data.view(dtype).reshape(part.shape) for part in column] for column in columns]
        array = _stack(arrays) if source.stacked else arrays[0][0]
        return array.astype(self.tensor_type(name).dtype.numpy, copy=False)


def _stack(columns: Sequence[Sequence[Array]]) -> Array:
    """Matrices ``columns[c][e]`` as one array (experts, rows of all columns, K)."""
    rows = [column[0].shape[0] for column in columns]
    stack: Array = np.empty((len(columns[0]), sum(rows), columns[0][0].shape[1]), columns[0][0].dtype)
    begin = 0
    for column, count in zip(columns, rows, strict=True):
        for expert, matrix in enumerate(column):
            stack[expert, begin : begin + count] = matrix
        begin += count
    return stack


def _read_tensors(path: Path) -> dict[str, StoredTensor]:
    """Every tensor of the folder by its stored name."""
    if (path / _INDEX).exists():
        return _read_shards(path, _weight_map(path / _INDEX))
    if (path / _SINGLE).exists():
        return read_safetensors(path / _SINGLE)
    files = sorted(path.glob("*.safetensors"))
    if len(files) == 1:
        return read_safetensors(files[0])
    if files:
        raise ImportModelError(
            f"{path} has {len(files)} safetensors files and no {_INDEX} that says which tensors are where"
        )
    others = sorted(file.name for pattern in _OTHER_WEIGHTS for file in path.glob(pattern))
    if others:
        raise ImportModelError(
            f"{path} has weights only in {', '.join(others[:3])}; safetensors are needed, "
            "which model.save_pretrained of transformers writes: pickles are programs, and cannot be mapped"
        )
    raise ImportModelError(f"{path} has no weights: neither {_SINGLE} nor {_INDEX}")


def _weight_map(index: Path) -> Mapping[str, str]:
    try:
        weight_map = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        if not isinstance(weight_map, dict) or not all(isinstance(v, str) for v in weight_map.values()):
            raise TypeError("weight_map must map tensor names to file names")
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ImportModelError(f"{index} is not an index of safetensors shards: {error}") from error
    return weight_map


def _read_shards(path: Path, weight_map: Mapping[str, str]) -> dict[str, StoredTensor]:
    shards: dict[str, dict[str, StoredTensor]] = {}
    for shard in sorted(set(weight_map.values())):
        if Path(shard).name != shard:
            raise ImportModelError(f"{path / _INDEX} names {shard!r}, which is not a file of the folder")
        if not (path / shard).is_file():
            raise ImportModelError(f"{path / _INDEX} names the shard {shard}, which is missing in {path}")
        shards[shard] = read_safetensors(path / shard)
    for name, shard in weight_map.items():
        if name not in shards[shard]:
            raise ImportModelError(f"{path / _INDEX} says that {shard} holds {name!r}, which it does not")
    return {name: shards[shard][name] for name, shard in weight_map.items()}
