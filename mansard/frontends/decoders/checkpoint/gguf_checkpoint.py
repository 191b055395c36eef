"""GGUF files as checkpoints."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mansard.dtypes import DType
from mansard.errors import ImportModelError
from mansard.formats.gguf_file import GgufTensor, read_gguf
from mansard.frontends.decoders.checkpoint.checkpoint import Checkpoint, missing_tensor, offered_dtype
from mansard.frontends.decoders.checkpoint.gguf_arrays import (
    PLAIN,
    can_dequantise,
    dequantise,
    integers,
    joined_shape,
    per_group,
)
from mansard.frontends.decoders.checkpoint.gguf_blocks import FORMATS, BlockFactor, Read
from mansard.frontends.decoders.checkpoint.gguf_config import config_of
from mansard.frontends.decoders.checkpoint.gguf_names import FAMILIES, GgufSource, sources_of
from mansard.frontends.decoders.checkpoint.quantised import QuantisedTensor, StoredFactor
from mansard.ir.types import Constant, TensorType

_CONFIG_NAMES = {
    DType.F64: "float64", DType.F32: "float32", DType.F16: "float16", DType.BF16: "bfloat16",
}  # fmt: skip
_SAMPLING = {
    "temp": "temperature", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p",
    "penalty_repeat": "repetition_penalty",
}  # fmt: skip
"""What a file recommends for sampling, and the keys of generation_config.json."""


class GgufCheckpoint(Checkpoint):
    """A GGUF file, or the first of several parts. Tensors are offered in ``dtype``: by default the type of
    most of the file's matrices where that is a floating-point one, else bf16."""

    def __init__(self, path: Path, dtype: DType | None = None) -> None:
        self.path = path
        self._constants: dict[str, Constant] = {}
        file = read_gguf(path)
        architecture = str(file.metadata.get("general.architecture"))
        if architecture not in FAMILIES:
            raise ImportModelError(
                f"{path} is of architecture {architecture!r}; supported in GGUF files are "
                + ", ".join(FAMILIES)
            )
        self._tensors = file.tensors
        self._check_types()
        config = config_of(file, architecture)
        self.dtype = dtype or self._stored_dtype()
        self.config = {**config, "dtype": _CONFIG_NAMES[self.dtype]}
        self.generation = {
            key: file.metadata[f"general.sampling.{name}"]
            for name, key in _SAMPLING.items()
            if f"general.sampling.{name}" in file.metadata
        }
        self._sources = sources_of(
            FAMILIES[architecture],
            self._tensors,
            config["num_attention_heads"],
            config["num_key_value_heads"],
        )
        self._check_shapes()
        self.names = frozenset(self._sources)
        self._closed = False

    def tensor_type(self, name: str) -> TensorType:
        """The shape in ``transformers``, and the checkpoint's dtype."""
        source = self._source(name)
        tensors = self._parts(source)
        shape = joined_shape(tensors)
        if source.unsqueezed and len(shape) == 2:
            shape = (shape[0], 1, shape[1])
        stored = PLAIN.get(tensors[0].type_name, DType.F32)
        return TensorType(shape, offered_dtype(name, stored, self.dtype))

    def constant(self, name: str) -> Constant:
        """A view of the mapped file for tensors stored in the checkpoint's dtype, else a new array."""
        self.tensor_type(name)
        return self._constants.setdefault(name, Constant(name, functools.partial(self._load, name)))

    def quantised(self, name: str) -> QuantisedTensor | None:
        """The tensor as stored in groups of integers; None for floating point, for types that are no integers
        times a scale (IQ1 to IQ3, TQ) and for merged tensors whose parts have different types."""
        source = self._source(name)
        tensors = self._parts(source)
        form = FORMATS.get(tensors[0].type_name)
        if form is None or source.shift or any(t.type_name != tensors[0].type_name for t in tensors):
            return None

        def groups(kind: str, read: Read, size: int = form.group, dtype: DType = DType.F32) -> Constant:
            load = functools.partial(per_group, tensors, size, source.heads, read, dtype)
            return Constant(f"{name}.{kind}", load)

        def stored(kind: str, factors: Sequence[BlockFactor]) -> tuple[StoredFactor, ...]:
            return tuple(
                StoredFactor(f.size, f.dtype, groups(f"{kind}.{f.size}", f.read, f.size, f.dtype))
                for f in factors
            )

        return QuantisedTensor(
            TensorType(joined_shape(tensors), form.dtype),
            form.group,
            Constant(f"{name}.values", functools.partial(integers, tensors, form, source.heads)),
            groups("scales", form.scales),
            groups("offsets", form.offsets) if form.offsets is not None else None,
            stored("scales", form.scale_factors),
            stored("offsets", form.offset_factors),
        )

    def stored_type(self, name: str) -> str | None:
        """ggml's name of the tensor's type; None for floating point."""
        kinds = {tensor.type_name for tensor in self._parts(self._source(name))} - set(PLAIN)
        return " and ".join(sorted(kinds)) or None

    def close(self) -> None:
        """Drop the mapped file."""
        self._tensors, self._closed = {}, True

    def _source(self, name: str) -> GgufSource:
        if name not in self._sources:
            raise missing_tensor(self.path, name, self.names)
        return self._sources[name]

    def _parts(self, source: GgufSource) -> Sequence[GgufTensor]:
        if self._closed:
            raise ImportModelError(f"the checkpoint {self.path} is closed")
        return [self._tensors[part] for part in source.parts]

    def _load(self, name: str) -> npt.NDArray[np.generic]:
        source, kind = self._source(name), self.tensor_type(name)
        tensors = self._parts(source)
        shape = kind.concrete({})
        as_it_is = source.heads is None and not source.shift and len(tensors) == 1
        if as_it_is and PLAIN.get(tensors[0].type_name) is kind.dtype:
            return tensors[0].data.view(kind.dtype.numpy).reshape(shape)
        array = dequantise(tensors, kind.dtype, heads=source.heads, shift=source.shift)
        return array.reshape(shape)

    def _stored_dtype(self) -> DType:
        """The type of most matrices where that is a floating-point one, else bf16."""
        sizes: dict[str, int] = {}
        for tensor in self._tensors.values():
            if len(tensor.shape) > 1:
                sizes[tensor.type_name] = sizes.get(tensor.type_name, 0) + tensor.data.size
        return PLAIN.get(max(sizes, key=lambda name: sizes[name]), DType.BF16)

    def _check_types(self) -> None:
        kinds = {tensor.type_name: (name, tensor) for name, tensor in self._tensors.items()}
        for name, tensor in kinds.values():
            if not can_dequantise(tensor):
                raise ImportModelError(
                    f"tensor {name!r} of {self.path} has type {tensor.type_name}, which cannot be read as "
                    "floating point"
                )

    def _check_shapes(self) -> None:
        """Parts fit each other, and rows of heads divide."""
        for name, source in self._sources.items():
            tensors = [self._tensors[part] for part in source.parts]
            first = tensors[0].shape
            fits = all(
                len(t.shape) == len(first) > 1 and (t.shape[:-2], t.shape[-1]) == (first[:-2], first[-1])
                for t in tensors[1:]
            )
            if not fits:
                shapes = " and ".join(str(list(tensor.shape)) for tensor in tensors)
                raise ImportModelError(
                    f"{self.path}: {' and '.join(source.parts)} of shapes {shapes} cannot be joined as {name}"
                )
            rows = first[-2] if len(first) > 1 else first[0]
            if source.heads is not None and rows % (2 * source.heads):
                raise ImportModelError(f"{self.path}: {name} has {rows} rows for {source.heads} heads")
