"""Placement problems of tests, random ones among them, and the devices and graphs they are made of."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np

from mansard.ir import GraphBuilder
from mansard.passes.fusion.fuse import fuse
from mansard.placement import DeviceSlot
from mansard.placement.problem import HOST, DataEdge, PlacementProblem, ResidentConstant
from mansard.placement.simulate import simulate
from mansard.targets.profile import DeviceProfile, LinkProfile
from support.graphs import F32, matmul, unary


def profile(name, handoff, link, unified):
    return DeviceProfile(name, 1e9, 1e9, 0, {"f32": 1e9}, 0.0, LinkProfile(link, handoff), unified)


def random_problem(seed, count=7, devices=2):
    """A random DAG; every dispatch reads one or two earlier ones or the input, the last gives the output."""
    rng = np.random.default_rng(seed)
    profiles = tuple(
        profile(f"d{i}", float(rng.uniform(0, 0.3)), 1.0, bool(rng.integers(2))) for i in range(devices)
    )
    readers = {}
    for n in range(count):
        for source in {int(s) for s in rng.integers(max(-1, n - 3), n, 2)} if n else {HOST}:
            readers.setdefault(source, []).append(n)
    edges = [DataEdge(s, tuple(r), float(rng.uniform(0, 0.5))) for s, r in readers.items()]
    edges += [DataEdge(n, (HOST,), 0.1) for n in range(count) if n not in readers]
    times = tuple(tuple(float(t) for t in rng.uniform(0.1, 1.0, devices)) for _ in range(count))
    allowed = tuple(
        tuple(range(devices)) if rng.uniform() < 0.8 else (int(rng.integers(devices)),) for _ in range(count)
    )
    return PlacementProblem(times, allowed, tuple(edges), profiles)


def best_of_all(problem, objective, accept=lambda labels: True):
    def cost(labels):
        predicted = simulate(problem, labels)
        return predicted.seconds if objective == "latency" else max(problem.queue_loads(predicted.load))

    return min(cost(list(labels)) for labels in itertools.product(*problem.allowed) if accept(labels))


UNLIMITED = 1 << 30
LATER = 60.0


def constrained(seed):
    """A random problem with, by chance: an input that several read, outputs in the middle, own links, shared
    cores, a state, constants that several read under limits, least shares, delays of the caller."""
    rng = np.random.default_rng(seed + 1000)
    devices = int(rng.integers(2, 4))
    count = int(rng.integers(4, 7 if devices == 3 else 9))
    problem = random_problem(seed, count, devices)

    def some(max_count):
        return tuple(sorted({int(n) for n in rng.integers(0, count, max_count)}))

    edges = [
        dataclasses.replace(edge, consumers=(*edge.consumers, HOST))
        if edge.producer != HOST and HOST not in edge.consumers and rng.uniform() < 0.2
        else edge
        for edge in problem.edges
    ]
    if rng.uniform() < 0.5:
        edges.append(DataEdge(HOST, some(3), float(rng.uniform(0, 0.5))))
    profiles = tuple(
        dataclasses.replace(
            device_profile,
            links={
                f"d{other}": LinkProfile(float(rng.uniform(0.5, 2)), float(rng.uniform(0, 0.3)))
                for other in range(devices)
                if rng.uniform() < 0.5
            },
        )
        for device_profile in problem.profiles
    )
    if rng.uniform() < 0.3:  # two devices on the same cores
        profiles = tuple(
            dataclasses.replace(device_profile, cores="host" if number < 2 else "")
            for number, device_profile in enumerate(profiles)
        )
    if rng.uniform() < 0.5:
        profiles = tuple(delayed(device_profile, rng) for device_profile in profiles)
    more = {}
    group = some(3)
    if rng.uniform() < 0.4 and len(group) > 1:
        more["colocated"] = (group,)
    if rng.uniform() < 0.4:
        more["constants"] = tuple(
            ResidentConstant(int(rng.integers(1, 20)), some(int(rng.integers(1, 3)))) for _ in range(5)
        )
        more["limits"] = tuple(int(rng.integers(5, 50)) if rng.uniform() < 0.6 else None for _ in profiles)
    if rng.uniform() < 0.3:
        more["min_dispatches"] = tuple(int(rng.integers(0, 3)) for _ in profiles)
    return dataclasses.replace(problem, edges=tuple(edges), profiles=profiles, **more)


def delayed(device_profile, rng):
    """The profile with what copies take beside their bytes, and delays and copies of the caller's side."""
    points = ((0.1, float(rng.uniform(0, 0.1))), (0.5, float(rng.uniform(0.1, 0.3))))

    def slower(link):
        delays = {
            "copy_seconds": float(rng.uniform(0, 0.1)),
            "host_copies": points if rng.uniform() < 0.6 else (),
        }
        return dataclasses.replace(link, **delays)

    links = {name: slower(link) for name, link in device_profile.links.items()}
    if rng.uniform() < 0.6:
        links["host"] = slower(LinkProfile(float(rng.uniform(0.5, 2)), float(rng.uniform(0, 0.3))))
    start = float(rng.uniform(0, 0.5)) if rng.uniform() < 0.7 else 0.0
    return dataclasses.replace(device_profile, link=slower(device_profile.link), links=links, start=start)


def best_allowed(problem, objective):
    try:
        return best_of_all(problem, objective, problem.is_feasible)
    except ValueError:  # none is allowed
        return None


def device(name, rate=1e9, *, launch=0.0, handoff=0.0, refuses=lambda d: None, fallback=False, unified=True):
    link = LinkProfile(1e9, handoff)
    profile = DeviceProfile(name, 1e12, 1e12, 0, {"f32": rate}, launch, link, unified)
    return DeviceSlot(name, profile, refuses, fallback)


def chain(length=6, size=64):
    """Matmuls one after another: each a dispatch of 2 * size**3 operations."""
    b = GraphBuilder()
    x, w = b.input("x", (size, size), F32), b.input("w", (size, size), F32)
    for _ in range(length):
        x = unary(b, "exp", matmul(b, x, w))
    return fuse(b.build([x]))


CHIP = """
name = "Test chip"
[cpu]
bandwidth = 1e9
cache_bandwidth = 1e9
cache_bytes = 0
launch = 1e-3
handoff = 2e-3
link = 1e9
rates = { f32 = 1e15 }
memory = 1000000
[vulkan]
unified = false
bandwidth = 2e9
cache_bandwidth = 2e9
cache_bytes = 0
launch = 0
handoff = 5e-3
link = 1e6
rates = { f32 = 1e15 }
efficiency = { bandwidth = 0.5 }
memory = 100
links = { cpu = { link = 2e6, handoff = 1e-3 }, host = { link = 4e6, handoff = 0 } }
"""
