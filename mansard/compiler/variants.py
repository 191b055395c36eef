"""Target variants: one model compiled for several CPUs or GPUs of a kind; the best one present runs.

The variants of a target share everything up to the kernels: graph, fusion, placement. Each has kernels
and a plan of its own; what is equal between them (weights, code of other devices) is stored once.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from mansard.compiler.executables import Executables
from mansard.compiler.targets import CompileTarget
from mansard.compiler.weights import Load, Weight
from mansard.dtypes import DType
from mansard.ir.panels import Panels
from mansard.ir.types import Value
from mansard.plan.plan import ExecutableRef, WeightSpec


def target_sets(targets: Sequence[CompileTarget]) -> list[list[CompileTarget]]:
    """The targets of every variant, the best first; one list when no target has variants."""
    sets = [list(targets)]
    for number, target in enumerate(targets):
        for kernel in target.variants:
            other = dataclasses.replace(target, kernel=kernel, variants=())
            sets.append([*targets[:number], other, *targets[number + 1 :]])
    return sets


Content = tuple[str, tuple[int, ...], DType, Panels | None]
"""The origin of a constant's data, which identifies them within a model, and the form in which they are
kept."""


@dataclass
class SharedFiles:
    """Artifact entries of all methods and variants: equal code and equally packed weights are one entry."""

    blobs: dict[str, bytes] = field(default_factory=dict)
    weights: dict[tuple[Value, Panels | None], Weight] = field(default_factory=dict)
    _plain: dict[int, tuple[Load, WeightSpec]] = field(default_factory=dict)
    """Weights as the model has them, by the identity of what loads them (which is held, and need not have a
    hash): copies of a constant are one entry."""
    _method: str = ""
    _earlier: dict[Content, Weight] = field(default_factory=dict)
    """Weights of earlier methods, by what they hold."""

    def begin_method(self, name: str) -> None:
        """What is added from now on is of another method: its weights are shared by their content."""
        self._method = name
        weights: dict[Content, Weight | None] = {}
        for (_, panels), weight in self.weights.items():
            content = _content(weight[0], panels)
            weights[content] = weight if content not in weights else None  # not one content after all
        self._earlier = {content: weight for content, weight in weights.items() if weight and content[0]}

    def add_code(self, variant: int, kernels: Executables) -> list[tuple[ExecutableRef, ...]]:
        """Take over a variant's code; its references, renamed where entries are shared or clash."""
        entry_of = {blob: entry for entry, blob in self.blobs.items()}
        renamed: dict[str, str] = {}
        for entry, blob in kernels.blobs.items():
            name = entry if variant == 0 else re.sub(r"(/[^/]*)$", rf"/variant{variant}\1", entry)
            name = f"{self._method}/{name}" if self._method else name
            renamed[entry] = entry_of.get(blob, name)
            self.blobs[renamed[entry]] = blob
        return [
            tuple(dataclasses.replace(ref, entry=renamed[ref.entry]) for ref in refs) for refs in kernels.refs
        ]

    def add_weights(
        self, weights: Mapping[Value, Weight], packed: Mapping[Value, Panels]
    ) -> dict[Value, WeightSpec]:
        """Take over a variant's weights; a constant that kernels want packed in another way than a
        variant before is another entry."""
        specs: dict[Value, WeightSpec] = {}
        forms: dict[Value, int] = {}
        for value, _ in self.weights:
            forms[value] = forms.get(value, 0) + 1
        for value, (spec, load) in weights.items():
            key = (value, packed.get(value))
            shared = self._earlier.get(_content(spec, key[1]))
            if shared is not None:
                specs[value] = shared[0]
                continue
            if key[1] is None and id(load) in self._plain:
                specs[value] = self._plain[id(load)][1]
                continue
            if key not in self.weights:
                count = forms.get(value, 0)
                entry = f"{spec.entry}.form{count}" if count else spec.entry
                entry = f"{self._method}/{entry}" if self._method else entry
                self.weights[key] = (dataclasses.replace(spec, entry=entry), load)
            specs[value] = self.weights[key][0]
            if key[1] is None:
                self._plain[id(load)] = load, specs[value]
        return specs


def _content(spec: WeightSpec, panels: Panels | None) -> Content:
    return (spec.source, spec.shape, spec.dtype, panels)
