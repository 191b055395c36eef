"""What a checkpoint offers, whatever its files: a configuration and named tensors, loaded on demand."""

from __future__ import annotations

import abc
import difflib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from mansard.dtypes import DType
from mansard.errors import ImportModelError
from mansard.frontends.decoders.checkpoint.quantised import QuantisedTensor
from mansard.ir.types import Constant, TensorType


class Checkpoint(abc.ABC):
    """The weights of a model and what they mean.

    ``config`` has the keys and meanings of Hugging Face's ``config.json``; its ``eos_token_id``,
    ``bos_token_id`` and ``pad_token_id`` are those of ``generation_config.json`` where that gives them.
    ``generation`` is the latter as a whole, empty where there is none. ``names`` are the tensors by the names
    of the family's implementation in ``transformers``; experts are stacked as there, whatever files have.
    """

    path: Path
    config: Mapping[str, Any]
    generation: Mapping[str, Any]
    names: frozenset[str]

    @abc.abstractmethod
    def tensor_type(self, name: str) -> TensorType:
        """Shape and dtype of the array that `constant` loads.

        Raises ImportModelError for a missing name (with the nearest ones) and for a dtype not supported.
        """

    @abc.abstractmethod
    def constant(self, name: str) -> Constant:
        """The tensor, with its name as key; raises as `tensor_type` does.

        Nothing is read until the constant's ``load`` is called. That answers with a view of the mapped file
        where the file has the tensor in this form, else with a new array, which nobody else keeps.
        """

    def quantised(self, name: str) -> QuantisedTensor | None:
        """The tensor as stored in groups of small integers; None for one that is stored as floating point."""
        self.tensor_type(name)
        return None

    def stored_type(self, name: str) -> str | None:
        """What the format calls the type of a tensor that is not stored as floating point, else None."""
        self.tensor_type(name)
        return None

    @abc.abstractmethod
    def close(self) -> None:
        """Drop the files; arrays that were loaded keep theirs mapped. Constants load no more."""


def offered_dtype(name: str, stored: DType, wanted: DType | None) -> DType:
    """The dtype in which a tensor is offered when ``wanted`` is that of the model.

    Integers stay what they are, and so does what only selects experts: rounding it would select others.
    """
    keep = wanted is None or not stored.is_float or name.endswith(".expert_bias")
    return stored if keep or wanted is None else wanted


def missing_tensor(path: Path, name: str, names: Iterable[str]) -> ImportModelError:
    """The error for a tensor that a checkpoint lacks, with the names nearest to it."""
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.6)
    hint = f"; the nearest are {', '.join(near)}" if near else ""
    return ImportModelError(f"{path} has no tensor {name!r}{hint}")
