"""Units: dispatches of all methods that are placed as one, since they use the same weights and states.

What one method keeps on a device the others find there, so a unit has one device for each *role*, a group of
methods that are placed alike. Units are in the model's order; a dispatch that holds nothing goes with the
next that does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from mansard.placement.methods.method import Method, Resident
from mansard.placement.problem import HOST, PlacementProblem

Floats = npt.NDArray[np.float64]

MIN_PART = 1e-4
"""Of all that is held: smaller constants do not tie the dispatches that read them, and may be held twice."""
WIDE = 0.5
"""A resident whose users lie as far apart, as a part of a method, is *wide*: it does not make one unit of
what lies between (a table that the first and the last layer read)."""


@dataclass
class Unit:
    """``members`` are dispatch numbers by method, ``seconds`` those of each role on each device (infinite: a
    part cannot run there)."""

    members: dict[int, list[int]]
    anchors: dict[int, list[int]]
    """The members that hold something."""
    seconds: Floats
    constants: int = 0
    states: int = 0
    """Bytes that it holds."""
    wide: dict[int, set[int]] = field(default_factory=dict)
    """The wide residents that each role uses, by number."""
    programs: Mapping[tuple[int, int], tuple[int, ...]] = field(default_factory=dict)
    """Bytes of the programs of regions that embed their constants, by (role, device) that runs them."""

    def held(self, option: Sequence[int], device: int) -> int:
        """Bytes that a device holds for the unit, whose roles have the devices in ``option``."""
        if device not in option:
            return 0
        programs = [self.programs.get((role, device)) for role, d in enumerate(option) if d == device]
        embedded = [sum(sizes) for sizes in programs if sizes is not None]
        # A role whose programs embed their constants needs no other copy of them.
        constants = self.constants if len(embedded) < len(programs) else 0
        return constants + sum(embedded) + self.states


@dataclass(frozen=True)
class Chain:
    """Units in the model's order, and how many bytes each role has live between one unit and the next."""

    units: tuple[Unit, ...]
    live: Floats
    """[boundary behind a unit, role]"""
    wide: tuple[Resident, ...]


def chain_of(
    methods: Sequence[Method],
    problems: Sequence[PlacementProblem],
    residents: Sequence[Resident],
    together: Sequence[Sequence[Sequence[int]]],
    roles: Sequence[Sequence[int]],
) -> Chain:
    """The units of methods; ``together`` are further groups of dispatches of each method that stay on one
    device, ``roles`` the methods of each role, of which the first counts."""
    sizes = [len(problem.times) for problem in problems]
    least = MIN_PART * sum(r.bytes for r in residents)
    tying = [r for r in residents if r.is_state or r.bytes >= least]
    wide = [r for r in tying if r.span(sizes) > WIDE and len({n for u in r.users.values() for n in u}) > 1]
    role_of = {m: number for number, role in enumerate(roles) for m in role}
    union = _Union(sizes)
    for m, groups in enumerate(together):
        for group in groups:
            union.join([(m, n) for n in group])
    states = [r for r in tying if r.is_state and r not in wide]
    for resident in states:
        union.join(_users(resident))
    # A constant whose readers are pinned to several devices is held by each of them.
    sets = _DeviceSets(union, problems, role_of)
    apart = [r for r in tying if not r.is_state and r not in wide and not sets.join(_users(r))]
    tying = [r for r in tying if r not in apart]
    narrow = [r for r in tying if r not in wide]
    anchored = {(m, n) for r in tying for m, numbers in r.users.items() for n in numbers}
    anchored |= {(m, n) for m, groups in enumerate(together) for group in groups for n in group}
    members = _units(sizes, union, anchored)
    first = [role[0] for role in roles]
    devices = len(problems[0].profiles)
    units, unit_of = [], {}
    for number, nodes in enumerate(members):
        unit_of.update(dict.fromkeys(nodes, number))
        by_method: dict[int, list[int]] = {}
        for m, n in nodes:
            by_method.setdefault(m, []).append(n)
        anchors = {m: [n for n in numbers if (m, n) in anchored] for m, numbers in by_method.items()}
        unit = Unit(by_method, anchors, np.zeros((len(roles), devices)))
        for m, numbers in by_method.items():
            role = role_of[m]
            for n in numbers:
                able = problems[m].allowed[n]
                for device in range(devices):
                    if device not in able and n in anchors[m]:
                        unit.seconds[role, device] = math.inf
                    elif m == first[role]:
                        unit.seconds[role, device] += _seconds(problems[m], n, device)
        units.append(unit)
    for resident in narrow:
        m, numbers = next(iter(resident.users.items()))
        unit = units[unit_of[m, numbers[0]]]
        if resident.is_state:
            unit.states += resident.bytes
        else:
            unit.constants += resident.bytes
    for number, resident in enumerate(wide):
        for m, numbers in resident.users.items():
            for n in numbers:
                units[unit_of[m, n]].wide.setdefault(role_of[m], set()).add(number)
    live = np.zeros((len(units), len(roles)))
    for role, m in enumerate(first):
        for edge in problems[m].edges:
            users = [unit_of[m, n] for n in edge.consumers if n != HOST]
            if users:
                start = 0 if edge.producer == HOST else unit_of[m, edge.producer]
                live[start : max(users), role] += edge.bytes
    return Chain(tuple(units), live, tuple(wide))


def _seconds(problem: PlacementProblem, n: int, device: int) -> float:
    """Of a dispatch whose unit is on a device; elsewhere, with the ways there and back, if it has to be."""
    if device in problem.allowed[n]:
        return problem.times[n][device]
    return min(
        problem.times[n][other]
        + problem.transfer_delay(0, device, other)[0]
        + problem.transfer_delay(0, other, device)[0]
        for other in problem.allowed[n]
    )


class _Union:
    """Sets of nodes (method, dispatch) that are joined (Galler and Fischer, 1964)."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self.parent = {(m, n): (m, n) for m, size in enumerate(sizes) for n in range(size)}

    def root(self, node: tuple[int, int]) -> tuple[int, int]:
        while self.parent[node] != node:
            self.parent[node] = node = self.parent[self.parent[node]]
        return node

    def join(self, nodes: Sequence[tuple[int, int]]) -> None:
        for node in nodes[1:]:
            self.parent[self.root(node)] = self.root(nodes[0])


def _users(resident: Resident) -> list[tuple[int, int]]:
    return [(m, n) for m, numbers in resident.users.items() for n in numbers]


class _DeviceSets:
    """The devices that each joined set may be on, by role."""

    def __init__(
        self, union: _Union, problems: Sequence[PlacementProblem], role_of: Mapping[int, int]
    ) -> None:
        self.union = union
        self.devices: dict[tuple[tuple[int, int], int], frozenset[int]] = {}
        for m, n in union.parent:
            place = union.root((m, n)), role_of[m]
            allowed = frozenset(problems[m].allowed[n])
            self.devices[place] = self.devices.get(place, allowed) & allowed
        self.roles = sorted(set(role_of.values()))

    def join(self, nodes: Sequence[tuple[int, int]]) -> bool:
        """Join nodes; False, without doing so, where no device is left for a role."""
        roots = {self.union.root(node) for node in nodes}
        left = {}
        for role in self.roles:
            sets = [self.devices[root, role] for root in roots if (root, role) in self.devices]
            if sets:
                left[role] = frozenset.intersection(*sets)
        if len(roots) > 1 and not all(left.values()):
            return False
        self.union.join(list(nodes))
        for role, devices in left.items():
            self.devices[self.union.root(nodes[0]), role] = devices
        return True


def _units(
    sizes: Sequence[int], union: _Union, anchored: set[tuple[int, int]]
) -> list[list[tuple[int, int]]]:
    """The nodes of every unit, units in the order in which the methods have them on average."""
    nodes: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for m, size in enumerate(sizes):
        following: tuple[int, int] | None = None
        last = max((n for n in range(size) if (m, n) in anchored), default=None)
        for n in reversed(range(size)):
            if (m, n) in anchored:
                following = union.root((m, n))
            elif following is None and last is not None:
                following = union.root((m, last))
            nodes.setdefault(following or (m, 0), []).append((m, n))
    starts = {}
    for root, group in nodes.items():
        in_methods: dict[int, int] = {}
        for m, n in group:
            in_methods[m] = min(n, in_methods.get(m, n))
        starts[root] = sum(n / sizes[m] for m, n in in_methods.items()) / len(in_methods)
    return [sorted(nodes[root]) for root in sorted(nodes, key=lambda root: starts[root])]
