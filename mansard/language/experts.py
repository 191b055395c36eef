"""Which experts of a model are on the device with little memory: those that are chosen most.

Counts of how often each expert was chosen come from texts (`LanguageModel.expert_counts`). The experts of a
layer that were chosen most become constants of their own (`mansard.frontends.decoders.layers.expert_parts`),
as many in each layer as the device has memory for, and are pinned to the device; the rest is computed on
another one at the same time.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from mansard import dims
from mansard.errors import ArtifactError, CompileError, InputError

if TYPE_CHECKING:
    from mansard.frontends.decoders.architecture import Architecture
    from mansard.ir.graph import Graph
    from mansard.ir.types import Constant, Value
    from mansard.passes.products.quantisation import Quantisation

Counts = npt.NDArray[np.int64]
"""How often each expert was chosen, (layers with experts, experts)."""
_KEY = "expert_placement"
"""Of `mansard.plan.plan.Plan.info`."""
STACKS = (".experts.gate_up_proj", ".experts.down_proj")
"""Ends of the names of stacked weights; integers and scales of a file have parts behind them."""
FOR_EXPERTS = 0.95
"""The part of what other weights and caches leave of a limit that experts may take; values need the rest."""


@dataclass(frozen=True)
class ExpertPlacement:
    """The experts of each layer that has some that are on ``device``; ``hits`` is their share of the choices
    that were counted, None without counts."""

    device: str
    experts: tuple[tuple[int, ...], ...]
    hits: float | None = None

    def share(self, counts: Counts) -> float:
        """The part of some choices that these experts are."""
        total = int(counts.sum())
        mine = sum(int(row[list(numbers)].sum()) for row, numbers in zip(counts, self.experts, strict=True))
        return mine / total if total else 0.0

    def __str__(self) -> str:
        counts = {len(numbers) for numbers in self.experts}
        each = f"{min(counts)}" if len(counts) == 1 else f"{min(counts)}-{max(counts)}"
        hits = "" if self.hits is None else f", {self.hits:.1%} of the choices that were counted"
        return f"experts on {self.device}: {each} of each layer{hits}"

    def to_info(self) -> dict[str, str]:
        """An entry for the plan's info."""
        return {_KEY: json.dumps(dataclasses.asdict(self))}

    @staticmethod
    def from_info(info: Mapping[str, str]) -> ExpertPlacement | None:
        """Read back `to_info`; None for a model whose experts are in one part. Raises ArtifactError."""
        if _KEY not in info:
            return None
        try:
            fields = json.loads(info[_KEY])
            return ExpertPlacement(**{**fields, "experts": tuple(map(tuple, fields["experts"]))})
        except (ValueError, TypeError, KeyError) as error:
            raise ArtifactError(f"the placement of the experts cannot be read: {error}") from error


def read_counts(counts: str | os.PathLike[str] | npt.ArrayLike, architecture: Architecture) -> Counts:
    """Counts as an array, or of a file that `numpy.save` wrote. Raises InputError for any other shape."""
    if isinstance(counts, str | os.PathLike):
        try:
            array = np.load(Path(counts), allow_pickle=False)
        except (OSError, ValueError) as error:
            raise InputError(f"the counts of experts in {counts} cannot be read: {error}") from error
    else:
        array = np.asarray(counts)
    shape = (len(_networks(architecture)), expert_count(architecture))
    if array.shape != shape or array.dtype.kind not in "iu" or (array < 0).any():
        raise InputError(
            f"the counts of experts are {array.dtype} {array.shape}; they must be integers {shape}, a row "
            "for each layer with experts"
        )
    counted: Counts = array.astype(np.int64)
    return counted


def place_experts(
    architecture: Architecture,
    graph: Graph,
    device: str,
    limit: int,
    counts: Counts | None,
    quantisation: Quantisation | None = None,
) -> tuple[Architecture, ExpertPlacement]:
    """The architecture with as many experts of each layer apart as fit ``limit`` bytes of a device, besides
    all other weights and states of ``graph``, which has them in one part, before they are quantised.

    Raises CompileError for a model without experts, or for a limit that holds no expert of each layer.
    """
    sizes = {v.name: _bytes(v, constant, quantisation) for v, constant in graph.constants.items()}
    stacked = sum(size for name, size in sizes.items() if _is_stacked(name))
    others = sum(sizes.values()) - stacked
    others += sum(dims.representative(state.before.type.bytes) for state in graph.states)
    layers, experts = len(_networks(architecture)), expert_count(architecture)
    each = stacked // experts  # an expert of every layer
    number = min(int(FOR_EXPERTS * (limit - others)) // each, experts - 1)
    if number < 1:
        raise CompileError(
            f"{device} may hold {limit / 1e6:.4g} MB, and other weights and caches have "
            f"{others / 1e6:.4g} MB: that leaves no room for one expert of each layer, {each / 1e6:.4g} MB"
        )
    ranked = np.tile(np.arange(experts), (layers, 1)) if counts is None else np.argsort(-counts, 1, "stable")
    chosen = tuple(tuple(sorted(row[:number].tolist())) for row in ranked)
    placement = ExpertPlacement(device, chosen)
    if counts is not None:
        placement = dataclasses.replace(placement, hits=placement.share(counts))
    return _with_experts_apart(architecture, chosen), placement


def _bytes(value: Value, constant: Constant, quantisation: Quantisation | None) -> int:
    """Those of a weight. Of quantised ones only stacks of experts count so, others as in the model: they take
    no more than that."""
    shape = [n for n in value.type.shape if isinstance(n, int)]
    is_stack = _is_stacked(value.name) and len(shape) == value.type.rank
    if quantisation is None or not quantisation.stacks or not is_stack:
        return dims.representative(value.type.bytes)
    taken = quantisation.takes(constant.key, math.prod(shape))
    return quantisation.stack_bytes(shape) if taken else dims.representative(value.type.bytes)


def _is_stacked(name: str) -> bool:
    return any(f"{end}." in f"{name}." for end in STACKS)


def choice_counts(choices: Sequence[npt.NDArray[Any]], experts: int) -> Counts:
    """Counts of the chosen experts (rows, chosen) of each layer."""
    return np.stack([np.bincount(rows.reshape(-1), minlength=experts) for rows in choices]).astype(np.int64)


def _networks(architecture: Architecture) -> list[Any]:
    from mansard.frontends.decoders.architecture import Experts

    networks = [block.network for block in architecture.blocks if isinstance(block.network, Experts)]
    if not networks:
        raise CompileError(f"{architecture.family} models of this configuration have no experts")
    return networks


def expert_count(architecture: Architecture) -> int:
    """Experts of a layer. Raises CompileError for a model that has none."""
    return int(_networks(architecture)[0].count)


def _with_experts_apart(architecture: Architecture, chosen: Sequence[tuple[int, ...]]) -> Architecture:
    from mansard.frontends.decoders.architecture import Experts

    numbers = iter(chosen)
    blocks = tuple(
        dataclasses.replace(block, network=dataclasses.replace(block.network, apart=next(numbers)))
        if isinstance(block.network, Experts)
        else block
        for block in architecture.blocks
    )
    return dataclasses.replace(architecture, blocks=blocks)
