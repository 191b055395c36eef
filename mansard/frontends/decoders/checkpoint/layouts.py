"""From names of stored tensors to those of the current implementations in ``transformers``.

Files keep the layout of the day they were written. ``transformers`` renames and merges while loading
(its ``conversion_mapping``); this is the part of it that the supported families need.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from mansard.errors import ImportModelError

_EXPERT = re.compile(r"(.+\.experts)\.(\d+)\.(gate_proj|up_proj|down_proj|w1|w2|w3)\.weight")
_MERGED = (
    {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)},
    {"gate_up_proj": ("w1", "w3"), "down_proj": ("w2",)},
)
"""Stacked tensors, and the tensors of one expert that each joins along their rows, by either convention."""
_GRANITE_MOE = (
    (r"block_sparse_moe\.input_linear\.weight$", "block_sparse_moe.experts.gate_up_proj"),
    (r"block_sparse_moe\.output_linear\.weight$", "block_sparse_moe.experts.down_proj"),
    (r"block_sparse_moe\.router\.layer\.weight$", "block_sparse_moe.router.weight"),
)
_RENAMES: Mapping[str, tuple[tuple[str, str], ...]] = {
    "granitemoe": _GRANITE_MOE,
    "granitemoeshared": _GRANITE_MOE,
    "granitemoehybrid": _GRANITE_MOE,
    "mixtral": ((r"\.block_sparse_moe\.", ".mlp."),),
}
_TEXT_PART = (
    (r"^(?:model\.language_model\.|language_model\.model\.)", "model."),
    (r"^language_model\.lm_head\.", "lm_head."),
)
"""The decoder of a model of several modalities, under the names that it has on its own."""


@dataclass(frozen=True)
class Source:
    """Stored tensors that make one of the current layout.

    One tensor as it is, or (``stacked``) experts: ``columns[c][e]`` is part ``c`` of expert ``e``; experts
    are stacked along a new first dim, the parts of each joined along their rows.
    """

    columns: tuple[tuple[str, ...], ...]
    stacked: bool = False


def current_layout(stored: Iterable[str], config: Mapping[str, Any]) -> dict[str, Source]:
    """The tensors of the current layout by name, for stored tensors of these names.

    Raises ImportModelError where one of the parts of an expert is missing.
    """
    renames = (*_TEXT_PART, *_RENAMES.get(config["model_type"], ()))
    result: dict[str, Source] = {}
    experts: dict[str, dict[str, dict[int, str]]] = defaultdict(lambda: defaultdict(dict))
    for name in stored:
        current = name
        for pattern, replacement in renames:
            current = re.sub(pattern, replacement, current)
        if match := _EXPERT.fullmatch(current):
            experts[match[1]][match[3]][int(match[2])] = name
        else:
            result[current] = Source(((name,),))
    for prefix, parts in experts.items():
        result.update(_stacks(prefix, parts))
    return result


def _stacks(prefix: str, parts: Mapping[str, Mapping[int, str]]) -> Iterator[tuple[str, Source]]:
    """The stacked tensors of one layer's experts, from stored names by part and expert."""
    count = 1 + max(max(column) for column in parts.values())
    merged = _MERGED[any(part in parts for part in ("w1", "w2", "w3"))]
    for name, columns in merged.items():
        for part in columns:
            missing = [expert for expert in range(count) if expert not in parts.get(part, {})]
            if missing:
                raise ImportModelError(
                    f"the checkpoint has no tensor {prefix}.{missing[0]}.{part}.weight, though others of "
                    f"its layer's {count} experts"
                )
        ordered = tuple(tuple(parts[part][expert] for expert in range(count)) for part in columns)
        yield f"{prefix}.{name}", Source(ordered, stacked=True)
