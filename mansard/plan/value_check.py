"""Checks that values of a plan hold what the plan says lies in them: tensors, weights, parts, transfers."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Mapping, Set

from mansard.dims import DimLike, add, bounds, ceildiv, mul, product, to_expr
from mansard.dtypes import DType
from mansard.errors import ArtifactError
from mansard.plan.claims import Claims
from mansard.plan.constraints import RELATIONS, ShapeConstraint
from mansard.plan.initialised import originals
from mansard.plan.plan import AssertSpec, Plan, TensorSpec, TransferStep, ValueSpec, WeightSpec

KINDS = ("input", "output", "constant", "transient", "state")
MAX_BYTES = 1 << 62
"""What sizes and offsets stay below, so that sums of them fit 64 bits."""


class ValueCheck:
    """Checks values by themselves; relations that depend on sizes are added to ``claims``."""

    def __init__(self, plan: Plan, values: Mapping[int, ValueSpec], claims: Claims) -> None:
        self._plan, self._values, self._claims = plan, values, claims

    def check(self, transfers: list[tuple[int, TransferStep]]) -> None:
        """Raise ArtifactError for the first value, tensor, state or transfer that does not fit;
        ``transfers`` are the plan's, with the device slots that they are for."""
        self._check_weights()
        for value in self._plan.values:
            self._check_value(value)
        self._check_disjoint_parts()
        for what, specs in (("input", self._plan.inputs), ("output", self._plan.outputs)):
            for spec in specs:
                self._check_tensor(f"{what} {spec.name!r}", spec)
        self._check_inputs()
        self._check_dims()
        self._check_states()
        for check in self._plan.asserts:
            self._check_assert(check)
        for constraint in self._plan.constraints:
            self._check_constraint(constraint)
        filled = Counter(step.target for _, step in transfers)
        given = originals(self._values, (step for _, step in transfers))
        for slot, step in transfers:
            if filled[step.target] > 1:
                raise ArtifactError(f"value {step.target} is the target of two transfers")
            self._check_transfer(slot, step, given)

    # Dims -----------------------------------------------------------------------------------
    def _check_dims(self) -> None:
        """Every dim gets its value from an input, or is chosen by the runtime."""
        plan = self._plan
        names = [dim.name for dim in plan.dims]
        if len(set(names)) != len(names):
            raise ArtifactError("the plan has a dim twice")
        shapes = [to_expr(d) for spec in plan.inputs for d in spec.shape]
        given = {symbol.name for d in shapes for symbol in d.symbols()}
        chosen = plan.chosen_dims
        for dim in plan.dims:
            if dim.min != dim.max and (dim.name in given) == (dim.name in chosen):
                how = "both by an input and by the runtime" if dim.name in given else "by no input"
                raise ArtifactError(f"dim {dim.name!r} is given {how}")

    # Values ---------------------------------------------------------------------------------
    def _check_value(self, value: ValueSpec) -> None:
        where = f"value {value.id} ({value.name})"
        if value.kind not in KINDS:
            raise ArtifactError(f"{where} is of unknown kind {value.kind!r}")
        self._check_size(f"the size of {where}", value.bytes)
        _in_range(value.device, len(self._plan.devices), f"device slot of {where}")
        if not 0 <= value.first < MAX_BYTES or not 0 <= value.last < MAX_BYTES:
            raise ArtifactError(f"{where} is used from epoch {value.first} to {value.last}")
        if value.weight is not None:
            self._check_weight(where, value)
        elif value.kind == "constant":
            raise ArtifactError(f"{where} is a constant without a weight")
        if value.part_of is not None:
            self._check_part(where, value, value.part_of)

    def _check_size(self, what: str, size: DimLike) -> None:
        self._claims.at_most(0, size, f"{what} is negative")
        if isinstance(size, int) and size >= MAX_BYTES:
            raise ArtifactError(f"{what} is {size} bytes, more than any memory")

    def _check_weights(self) -> None:
        sizes: dict[str, int] = {}
        for spec in self._plan.weights:
            if min(spec.shape, default=0) < 0 or _weight_bytes(spec) >= MAX_BYTES:
                raise ArtifactError(f"weight {spec.entry!r} has the shape {list(spec.shape)}")
            if sizes.setdefault(spec.entry, _weight_bytes(spec)) != _weight_bytes(spec):
                raise ArtifactError(f"weight {spec.entry!r} is there twice, of different sizes")

    def _check_weight(self, where: str, value: ValueSpec) -> None:
        assert value.weight is not None
        _in_range(value.weight, len(self._plan.weights), f"weight of {where}")
        if value.kind not in ("constant", "state"):
            raise ArtifactError(f"{where} is of kind {value.kind} and has a weight")
        spec = self._plan.weights[value.weight]
        self._claims.equal(value.bytes, _weight_bytes(spec), f"{where} holds weight {spec.entry!r}")

    def _check_part(self, where: str, value: ValueSpec, part_of: int) -> None:
        whole = self._values.get(part_of)
        if whole is None:
            raise ArtifactError(f"the whole of {where} names the missing value {part_of}")
        if whole.device != value.device or whole.part_of is not None:
            raise ArtifactError(f"{where} is a part of value {whole.id}, which is no whole of its device")
        if value.weight is not None or {value.kind, whole.kind} & {"input", "constant", "state"}:
            raise ArtifactError(
                f"{where} is of kind {value.kind} and a part of value {whole.id} of kind {whole.kind}; only "
                "what a call makes is made in parts"
            )
        self._check_size(f"the offset of {where}", value.part_offset)
        end = add(value.part_offset, value.bytes)
        self._claims.at_most(end, whole.bytes, f"{where} ends behind value {whole.id}, of which it is a part")

    def _check_disjoint_parts(self) -> None:
        """Parts do not overlap, and there is nothing of a whole beside its parts."""
        parts = sorted(
            (v for v in self._plan.values if v.part_of is not None),
            key=lambda v: (v.part_of, bounds(v.part_offset), v.id),
        )
        for a, b in itertools.pairwise(parts):
            if a.part_of == b.part_of:
                end = add(a.part_offset, a.bytes)
                self._claims.at_most(end, b.part_offset, f"parts {a.id} and {b.id} of a value overlap")
        sizes: dict[int, list[DimLike]] = {}
        for part in parts:
            if part.part_of is not None:
                sizes.setdefault(part.part_of, []).append(part.bytes)
        for whole, each in sizes.items():
            what = f"the parts of value {whole} are all of it"
            self._claims.equal(add(*each), self._values[whole].bytes, what)

    # Tensors and states ---------------------------------------------------------------------
    def _check_tensor(self, what: str, spec: TensorSpec) -> None:
        value = self._is_whole(what, spec.value)
        for extent in spec.shape:
            self._claims.at_most(0, extent, f"{what} has a negative extent")
        self._claims.equal(_tensor_bytes(spec.dtype, spec.shape), value.bytes, f"{what} is value {value.id}")

    def _check_inputs(self) -> None:
        named = [spec.value for spec in self._plan.inputs]
        names = [spec.name for spec in self._plan.inputs]
        for spec in self._plan.inputs:
            if self._values[spec.value].kind != "input":
                kind = self._values[spec.value].kind
                raise ArtifactError(f"input {spec.name!r} is bound to a value of kind {kind}")
            if named.count(spec.value) > 1 or names.count(spec.name) > 1:
                raise ArtifactError(f"input {spec.name!r} is there twice")
        for value in self._plan.values:
            if value.kind == "input" and value.id not in named:
                raise ArtifactError(f"value {value.id} ({value.name}) is of kind input but no input names it")

    def _check_assert(self, check: AssertSpec) -> None:
        what = f"assert {check.message!r}"
        self._is_whole(what, check.value)
        dtypes = {spec.dtype for spec in self._plan.inputs if spec.value == check.value}
        indices = check.limits is not None
        if check.dtype.bits < 8 or check.dtype.is_int != indices or not dtypes <= {check.dtype}:
            raise ArtifactError(f"{what} is of a value of {check.dtype.value}")
        names = {dim.name for dim in self._plan.dims}
        unknown = {s.name for d in check.limits or () for s in to_expr(d).symbols()} - names
        if unknown:
            raise ArtifactError(f"{what} names unknown dims: {', '.join(sorted(unknown))}")

    def _check_constraint(self, constraint: ShapeConstraint) -> None:
        what = f"constraint {str(constraint)[:200]!r}"
        if constraint.relation not in RELATIONS:
            raise ArtifactError(f"{what} is none of the relations {', '.join(RELATIONS)}")
        bound = {dim.name for dim in self._plan.dims} - self._plan.chosen_dims
        unknown = set(constraint.symbols) - bound
        if unknown:
            raise ArtifactError(f"{what} names dims that no input binds: {', '.join(sorted(unknown))}")

    def _check_states(self) -> None:
        entries = [entry for entry, _ in self._plan.states]
        for entry, exit_ in self._plan.states:
            before, after = (self._is_whole("a state", number) for number in (entry, exit_))
            if before.kind != "state" or entries.count(entry) > 1:
                raise ArtifactError(f"state {before.name!r} is a value of kind {before.kind}, or there twice")
            if exit_ != entry and exit_ in entries:
                raise ArtifactError(f"state {before.name!r} takes the contents of another state")
            self._claims.equal(before.bytes, after.bytes, f"state {before.name!r} takes value {exit_}")

    def _is_whole(self, what: str, number: int) -> ValueSpec:
        value = self._values.get(number)
        if value is None:
            raise ArtifactError(f"{what} names the missing value {number}")
        if value.part_of is not None:
            raise ArtifactError(f"{what} names value {number}, which is a part of another")
        return value

    # Transfers ------------------------------------------------------------------------------
    def _check_transfer(self, slot: int, step: TransferStep, given: Set[int]) -> None:
        ends = []
        for end, number in (("source", step.source), ("target", step.target)):
            if number not in self._values:
                raise ArtifactError(f"{end} of {step.label} names the missing value {number}")
            ends.append(self._values[number])
        source, target = ends
        if target.device != slot:
            raise ArtifactError(f"transfer {step.label!r} fills a value of another device")
        if target.kind not in ("transient", "output") or source.id == target.id:
            raise ArtifactError(f"{step.label} fills value {target.id} of kind {target.kind}")
        self._check_size(f"the offset of {step.label}", step.offset)
        self._claims.equal(step.bytes, target.bytes, f"{step.label} fills value {target.id}")
        end_of = add(step.offset, target.bytes)
        if source.id in given:  # the host fills both from one original
            if target.part_of is not None:
                raise ArtifactError(f"{step.label} fills value {target.id}, which is a part of another")
            self._claims.equal(end_of, source.bytes, f"{step.label} copies all of value {source.id}")
            self._claims.equal(step.offset, 0, f"{step.label} copies all of value {source.id}")
        else:
            self._claims.at_most(end_of, source.bytes, f"{step.label} reads beyond value {source.id}")


def _tensor_bytes(dtype: DType, shape: tuple[DimLike, ...]) -> DimLike:
    elements = product(shape)
    return mul(elements, dtype.itemsize) if dtype.bits >= 8 else ceildiv(mul(elements, dtype.bits), 8)


def _weight_bytes(spec: WeightSpec) -> int:
    return (math.prod(spec.shape) * spec.dtype.bits + 7) // 8


def _in_range(index: int, count: int, what: str) -> None:
    if not 0 <= index < count:
        raise ArtifactError(f"{what} is {index}; the plan has {count}")
