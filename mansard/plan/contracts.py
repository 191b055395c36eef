"""Compares the steps of a plan with the contracts of their kernels.

A contract (`KernelContract`) belongs to the code, a step to the plan. A step has to launch its kernel with
the params and on the grid of the contract, and every binding has to hold the bytes that the kernel accesses.
What a kernel writes is a value that the call makes, which it writes whole; no other binding lies in the same
memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Set

from mansard.dims import add
from mansard.errors import ArtifactError
from mansard.plan.claims import Claims
from mansard.plan.plan import BindingContract, BindingSpec, DispatchStep, KernelContract, ValueSpec

_WRITABLE = ("transient", "output", "state")


class ContractCheck:
    """Compares dispatches with contracts; relations that depend on sizes are added to ``claims``."""

    def __init__(self, values: Mapping[int, ValueSpec], copied: Set[int], claims: Claims) -> None:
        """``copied`` are the values that transfers fill."""
        self._values, self._copied, self._claims = values, copied, claims

    def check(self, step: DispatchStep, contract: KernelContract) -> None:
        """Raise ArtifactError when a step is not the launch that a contract is for."""
        what = f"dispatch {step.label!r}"
        if step.params != contract.params or step.grid != contract.grid:
            raise ArtifactError(
                f"{what} launches kernel {step.entry!r} with params {_text(step.params)} on the grid "
                f"{_text(step.grid)}; it was compiled for {_text(contract.params)} and {_text(contract.grid)}"
            )
        for position, access in enumerate(contract.bindings):
            self._check_binding(what, position, step.bindings[position], access)
            if access.writes:
                self._check_alone(what, step, contract, position)

    def _check_binding(
        self, dispatch: str, position: int, binding: BindingSpec, access: BindingContract
    ) -> None:
        value = self._values[binding.value]
        if not access.writes and binding.offset == 0 and access.bytes == value.bytes:
            return
        what = f"{dispatch}, binding {position}"
        if not access.writes:
            self._claims.at_most(0, binding.offset, f"{what} begins before value {value.id}")
            end = add(binding.offset, access.bytes)
            self._claims.at_most(end, value.bytes, f"{what}: the kernel reads beyond value {value.id}")
            return
        if value.kind not in _WRITABLE or value.id in self._copied:
            kind = "filled by a transfer" if value.id in self._copied else f"of kind {value.kind}"
            raise ArtifactError(f"{what}: the kernel writes value {value.id}, which is {kind}")
        if binding.offset != 0:
            raise ArtifactError(f"{what}: the kernel writes value {value.id} from byte {binding.offset} on")
        self._claims.equal(access.bytes, value.bytes, f"{what}: the kernel writes all of value {value.id}")

    def _check_alone(self, what: str, step: DispatchStep, contract: KernelContract, written: int) -> None:
        """No other binding is in the memory of a written one, but for those the contract names."""
        target = self._values[step.bindings[written].value]
        for position, binding in enumerate(step.bindings):
            if position == written or position in contract.in_place:
                continue
            value = self._values[binding.value]
            if target.id in (value.id, value.part_of) or target.part_of == value.id:
                raise ArtifactError(f"{what} writes value {target.id}, which is its binding {position}, too")


def _text(values: tuple[object, ...]) -> str:
    return f"({', '.join(map(str, values))})"
