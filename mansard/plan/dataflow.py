"""Which commands of a call wait for which: the graph of a plan's steps by the values they pass on.

Queues order more than that (a device may run one thing at a time, a barrier holds back everything after
it); reports compare what was measured with what the values alone would have allowed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from mansard.dims import DimLike, representative, symbol
from mansard.plan.accesses import Accesses
from mansard.plan.plan import DispatchStep, Plan, TransferStep


@dataclass(frozen=True)
class Node:
    """A dispatch or a copy that a call may make; ``parents`` are numbers of earlier nodes."""

    slot: int
    label: str
    kind: str
    """dispatch, transfer (between devices), upload or download (of an input or output)."""
    parents: tuple[int, ...] = ()
    bytes: DimLike = 0
    """What a copy moves, if it is one."""
    source: int | None = None
    """The slot that a transfer reads from; it, too, may be the one that copies."""


@dataclass
class _Walk:
    """How far a queue has been followed."""

    segment: int = 0
    seen: dict[int, int] = field(default_factory=dict)
    """Newest segment of other queues waited for."""


def dataflow(plan: Plan) -> tuple[Node, ...]:
    """The commands of a plan, parents first.

    Copies are listed wherever the memory of some device may make them necessary, with the labels that
    recordings give them (`mansard.plan.layout`).
    """
    return _Flow(plan).run()


class _Flow:
    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.nodes: list[Node] = []
        self.accesses = Accesses(plan)
        self.size = {value.id: value.bytes for value in plan.values}
        self.owner = {value.id: value.device for value in plan.values}
        self.name = {value.id: value.name for value in plan.values}
        self.input_name = {spec.value: spec.name for spec in plan.inputs}
        self.writers: dict[int, list[tuple[int, int]]] = {}  # value: (segment, node) of those that wrote it
        self.readers: dict[int, list[int]] = {}  # value: nodes that read it since it was written

    def run(self) -> tuple[Node, ...]:
        """Follow every queue as far as what it waits for has been followed."""
        for spec in self.plan.inputs:
            number = self._upload(self.owner.get(spec.value, 0), spec.value, spec.value)
            self.writers[spec.value] = [(-1, number)]
        walks = [_Walk() for _ in self.plan.devices]
        while any(self._advance(slot, walks) for slot in range(len(walks))):
            pass
        for output in self.plan.outputs:
            parts = self.accesses.whole((output.value,))
            written = tuple(node for part in parts for _, node in self.writers.get(part, ())[-1:])
            slot, size = self.owner.get(output.value, 0), self.size.get(output.value, 0)
            label = f"download {self.name.get(output.value, output.name)}"
            self._add(Node(slot, label, "download", written, size))
        return tuple(self.nodes)

    def _advance(self, slot: int, walks: Sequence[_Walk]) -> bool:
        """Follow one segment of a queue, if what it waits for has been; says whether it was."""
        walk, segments = walks[slot], self.plan.devices[slot].segments
        if walk.segment == len(segments):
            return False
        segment = segments[walk.segment]
        if any(other != slot and walks[other].segment <= number for other, number in segment.wait):
            return False
        for other, number in segment.wait:
            walk.seen[other] = max(number, walk.seen.get(other, -1))
        for step in segment.steps:
            if isinstance(step, DispatchStep):
                self._dispatch(slot, walk.segment, step)
            elif isinstance(step, TransferStep):
                self._transfer(slot, walk, step)
        walk.segment += 1
        return True

    def _dispatch(self, slot: int, segment: int, step: DispatchStep) -> None:
        access = self.accesses.of(step, self.writers)
        touched = (*access.reads, *access.writes)
        parents = {self.writers[v][-1][1] for v in touched if v in self.writers}
        parents |= {reader for v in access.writes for reader in self.readers.get(v, ())}
        number = self._add(Node(slot, step.label, "dispatch", tuple(sorted(parents))))
        for value in access.reads:
            self.readers.setdefault(value, []).append(number)
        for value in access.writes:
            self.writers.setdefault(value, []).append((segment, number))
            self.readers[value] = []

    def _transfer(self, slot: int, walk: _Walk, step: TransferStep) -> None:
        if step.source in self.input_name:  # every device gets inputs from the host
            number = self._upload(slot, step.source, step.target)
        else:
            source = self.owner.get(step.source, slot)
            known = walk.seen.get(source, -1)
            # The newest contents that the queue has waited for: later ones are not what it gets.
            before = [
                node
                for segment, node in self.writers.get(step.source, ())
                if source == slot or segment <= known
            ]
            label = f"transfer {self.name.get(step.source, '')}"
            number = self._add(Node(slot, label, "transfer", tuple(before[-1:]), step.bytes, source))
        self.writers.setdefault(step.target, []).append((walk.segment, number))

    def _upload(self, slot: int, source: int, target: int) -> int:
        label = f"upload {self.input_name[source]}"
        return self._add(Node(slot, label, "upload", (), self.size.get(target, 0)))

    def _add(self, node: Node) -> int:
        self.nodes.append(node)
        return len(self.nodes) - 1


def longest_path(nodes: Sequence[Node], durations: Sequence[float]) -> list[int]:
    """The numbers of the chain of nodes whose durations sum up to most, first to last; without parts of
    duration 0."""
    ends: list[float] = []
    through: list[int | None] = []
    for node, duration in zip(nodes, durations, strict=True):
        best = max(node.parents, key=lambda parent: ends[parent], default=None)
        ends.append(duration + (0 if best is None else ends[best]))
        through.append(best)
    path: list[int] = []
    at = max(range(len(ends)), key=ends.__getitem__, default=None)
    while at is not None:
        path.append(at)
        at = through[at]
    return [number for number in reversed(path) if durations[number]]


def dispatch_parents(nodes: Sequence[Node]) -> dict[int, tuple[int, ...]]:
    """For the number of every dispatch those of the dispatches whose results it reads, also across copies."""
    behind: list[tuple[int, ...]] = []
    parents_of: dict[int, tuple[int, ...]] = {}
    for number, node in enumerate(nodes):
        parents = tuple(sorted({p for parent in node.parents for p in behind[parent]}))
        if node.kind == "dispatch":
            parents_of[number] = parents
            behind.append((number,))
        else:
            behind.append(parents)
    return parents_of


def expected_times(plan: Plan, nodes: Sequence[Node], sizes: Mapping[str, int]) -> tuple[float, ...]:
    """Milliseconds that the cost model expects of every node of a plan; 0 for copies, which it leaves out.

    Empty where the plan does not tell, or tells it for other ``sizes`` than these.
    """
    if any(sizes.get(dim.name) != representative(symbol(dim)) for dim in plan.dims):
        return ()
    costs = {(d.device, d.dispatch): d.costs.get(d.device) for d in plan.decisions}
    times = [
        costs.get((plan.devices[node.slot].name, node.label)) if node.kind == "dispatch" else 0.0
        for node in nodes
    ]
    known = tuple(float(cost) for cost in times if isinstance(cost, (int, float)))
    return known if len(known) == len(times) else ()
