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


@dataclass
class SharedFiles:
    """Artifact entries of all variants: equal code and equally packed weights are one entry."""

    blobs: dict[str, bytes] = field(default_factory=dict)
    weights: dict[tuple[Value, Panels | None], Weight] = field(default_factory=dict)
    _plain: dict[int, tuple[Load, WeightSpec]] = field(default_factory=dict)
    """Weights as the model has them, by the identity of what loads them (which is held, and need not have a
    hash): copies of a constant are one entry."""

    def add_code(self, variant: int, kernels: Executables) -> list[tuple[ExecutableRef, ...]]:
        """Take over a variant's code; its references, renamed where entries are shared or clash."""
        entry_of = {blob: entry for entry, blob in self.blobs.items()}
        renamed: dict[str, str] = {}
        for entry, blob in kernels.blobs.items():
            name = entry if variant == 0 else re.sub(r"(/[^/]*)$", rf"/variant{variant}\1", entry)
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
            if key[1] is None and id(load) in self._plain:
                specs[value] = self._plain[id(load)][1]
                continue
            if key not in self.weights:
                count = forms.get(value, 0)
                entry = f"{spec.entry}.form{count}" if count else spec.entry
                self.weights[key] = (dataclasses.replace(spec, entry=entry), load)
            specs[value] = self.weights[key][0]
            if key[1] is None:
                self._plain[id(load)] = load, specs[value]
        return specs
