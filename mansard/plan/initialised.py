"""Checks that nothing is read before it is written: memory that no step has filled holds what others left.

Per queue, in the order of its steps; what another device computes need only be computed at all, since a
transfer of what no segment that it waits for has made is refused when a plan is laid out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set

from mansard.errors import ArtifactError
from mansard.plan.plan import DispatchStep, KernelContract, Plan, TransferStep, ValueSpec

_FILLED = ("input", "constant", "state")


class InitialisedCheck:
    """Follows what is written; steps are given in the order of their queues."""

    def __init__(self, plan: Plan, values: Mapping[int, ValueSpec]) -> None:
        self._plan, self._values = plan, values
        self._written = {value.id for value in plan.values if value.kind in _FILLED}
        self._parts: dict[int, list[int]] = {}
        for value in plan.values:
            if value.part_of is not None:
                self._parts.setdefault(value.part_of, []).append(value.id)
        self._transferred: list[TransferStep] = []

    def step(self, step: DispatchStep | TransferStep, contract: KernelContract | None) -> None:
        """A dispatch with its contract, if it has one, or a transfer; raises ArtifactError."""
        if isinstance(step, TransferStep):
            self._transferred.append(step)
            self._written.add(step.target)
            return
        if contract is None:  # who knows what it does
            self._written.update(binding.value for binding in step.bindings)
            return
        for binding, access in zip(step.bindings, contract.bindings, strict=True):
            if not access.writes and not self._is_written(binding.value):
                raise ArtifactError(
                    f"dispatch {step.label!r} reads value {binding.value} before a step has written it"
                )
        self._written.update(
            b.value for b, access in zip(step.bindings, contract.bindings, strict=True) if access.writes
        )

    def end(self) -> None:
        """What leaves the queues has been written; raises ArtifactError."""
        for step in self._transferred:
            self._demand(step.label, [step.source])
        self._demand("an output", (spec.value for spec in self._plan.outputs))
        self._demand("an assert", (check.value for check in self._plan.asserts))
        self._demand("a state", (exit_ for _, exit_ in self._plan.states))

    def _demand(self, what: str, numbers: Iterable[int]) -> None:
        for number in numbers:
            if not self._is_written(number):
                raise ArtifactError(f"{what} is value {number}, which no step writes")

    def _is_written(self, number: int) -> bool:
        """Whether a value, the whole that it is a part of, or all its parts are written."""
        if number in self._written or self._values[number].part_of in self._written:
            return True
        parts = self._parts.get(number)
        return parts is not None and set(parts) <= self._written


def originals(values: Mapping[int, ValueSpec], transfers: Iterable[TransferStep]) -> Set[int]:
    """Inputs and constants, and the values that transfers copy them to: the host fills them all."""
    targets: dict[int, list[int]] = {}
    for step in transfers:
        targets.setdefault(step.source, []).append(step.target)
    filled = {number for number, value in values.items() if value.kind in ("input", "constant")}
    pending = list(filled)
    while pending:
        new = [target for target in targets.get(pending.pop(), ()) if target not in filled]
        filled.update(new)
        pending += new
    return filled
