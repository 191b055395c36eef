"""Regions of several devices: what overlaps, or would wait for each other, is left to the first."""

from types import SimpleNamespace

from mansard.codegen.kernel_target import KernelTarget
from mansard.compiler.regions import partition_graph
from mansard.ir import GraphBuilder
from mansard.ir.region import Partition, Region
from mansard.testing.graphs import F32, binary, unary


class Backend:
    """Takes the ops it is told, for a second each."""

    def __init__(self, name, *regions):
        self.name, self.regions = name, regions

    def partition(self, graph, target):
        if not self.regions:
            return None
        ops = {op.body.op: op for op in graph.ops}
        return Partition(tuple(Region(frozenset(ops[n] for n in names)) for names in self.regions))

    def estimate_region(self, region, target):
        return float(len(region.ops))

    def region_bytes(self, region, target):
        return 0

    def describe_region(self, region, target):
        return ""


def partitions(graph, *backends):
    targets = [
        SimpleNamespace(name=b.name, backend=b, kernel=KernelTarget(b.name), memory=None) for b in backends
    ]
    partitions_by_device = partition_graph(graph, targets)
    return {
        name: [{op.body.op for op in region.ops} for region in partition.regions]
        for name, partition in partitions_by_device.items()
    }, partitions_by_device


def two_chains():
    """exp -> neg and tanh -> abs, and their sum."""
    b = GraphBuilder()
    x, y = b.input("x", (4,), F32), b.input("y", (4,), F32)
    left, right = unary(b, "neg", unary(b, "exp", x)), unary(b, "abs", unary(b, "tanh", y))
    return b.build([binary(b, "add", left, right)])


def test_devices_without_regions_are_not_listed():
    names, by_device = partitions(two_chains(), Backend("cpu"), Backend("npu", {"exp", "neg"}))
    assert names == {"npu": [{"exp", "neg"}]}
    assert [region.seconds for region in by_device["npu"].regions] == [2.0]


def test_equal_regions_are_offered_by_both():
    names, _ = partitions(two_chains(), Backend("a", {"exp", "neg"}), Backend("b", {"exp", "neg"}, {"tanh"}))
    assert names == {"a": [{"exp", "neg"}], "b": [{"exp", "neg"}, {"tanh"}]}


def test_what_overlaps_is_left_to_the_first():
    names, by_device = partitions(two_chains(), Backend("a", {"exp", "neg"}), Backend("b", {"neg", "add"}))
    assert names == {"a": [{"exp", "neg"}], "b": []}
    assert set(by_device["b"].reasons.values()) == {"its region overlaps a region of another device"}


def test_regions_of_two_devices_that_would_wait_for_each_other():
    names, by_device = partitions(two_chains(), Backend("a", {"exp", "abs"}), Backend("b", {"tanh", "neg"}))
    assert names == {"a": [{"exp", "abs"}], "b": []}
    assert set(by_device["b"].reasons.values()) == {
        "its region and one of another device would wait for each other"
    }
