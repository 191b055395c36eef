"""Results that are concatenated along the outermost dim are written in place, and nothing else is."""

import numpy as np
import pytest
from support.graph_runner import check, compiled
from support.graphs import A0, A1, F32, maps, matmul, op, unary

from mansard.analysis.concatenation import outermost_parts
from mansard.ir import Constant, GraphBuilder, IndexMap, Linear
from mansard.passes.canonical.lower_views import lower_views
from mansard.passes.fusion.fuse import fuse
from mansard.passes.fusion.joined_results import write_joins
from mansard.passes.fusion.side_by_side import put_side_by_side

ROW = 64
RANDOM = np.random.default_rng(0)


def weight(b, name="w", rows=ROW, columns=ROW):
    data = RANDOM.standard_normal((rows, columns)).astype(np.float32) / rows
    return b.constant(name, Constant.of(data, name), (rows, columns), F32)


def products(b, count, rows=1, columns=ROW):
    """Results of ``count`` dispatches, each the product of the one before."""
    x = b.input("x", (rows, columns), F32)
    results = []
    for number in range(count):
        results.append(matmul(b, results[-1] if results else x, weight(b, f"w{number}", columns, columns)))
    return results


def graph_of(build):
    b = GraphBuilder()
    return b.build(build(b))


def joined(build, alignment=64):
    graph = fuse(lower_views(graph_of(build)))
    return write_joins(graph, alignment), graph


def check_graph(device, build):
    graph = graph_of(build)
    check(graph, [RANDOM.standard_normal(v.type.shape).astype(np.float32) for v in graph.inputs], device)


def steps(b):
    return [unary(b, "exp", matmul(b, b.concat(products(b, 3), 0), weight(b)))]


def reshaped(b):
    return [b.concat([b.reshape(v, (1, 1, ROW)) for v in products(b, 3)], 1)]


def with_an_output(b):
    """A part that is an output, too, as the last state of a recurrent network is."""
    results = products(b, 3)
    return [b.concat(results, 0), b.reshape(results[2], (ROW,))]


def with_an_input(b):
    results = products(b, 2)
    return [b.concat([*results, b.input("y", (1, ROW), F32)], 0)]


def twice(b):
    results = products(b, 2)
    return [b.concat([results[0], results[1], results[0]], 0)]


def along_columns(b):
    return [b.concat(products(b, 2, rows=4), 1)]


def unaligned(b):
    return [b.concat(products(b, 2, columns=9), 0)]


def reordered(b):
    """Two results of two rows each, the rows of the second the other way round."""
    first, second = products(b, 2, rows=2)
    backwards = IndexMap((Linear.dim(0, -1, 1), Linear.dim(1)))
    second = b.generic([second], [backwards], (2, ROW), A0)
    return [b.concat([first, second], 0)]


def changed(b):
    return [unary(b, "exp", b.concat(products(b, 2), 0))]


def state_of(b):
    first, second = products(b, 2)
    state = b.state("s", (2, ROW), F32)
    b.update_state(state, b.concat([first, second], 0))
    return [unary(b, "exp", second)]


@pytest.mark.parametrize("build", [steps, reshaped])
def test_results_of_steps_are_parts_of_what_joins_them(build):
    after, before = joined(build)
    assert len(after.dispatches) == len(before.dispatches) - 1
    ((whole, parts),) = after.joins.items()
    assert whole in before.dispatches[3].outputs
    assert [at for _, at in parts] == [0, 4 * ROW, 8 * ROW]
    assert [v for v, _ in parts] == [d.outputs[0] for d in before.dispatches[:3]]
    assert f"join %{whole.name}: " in str(after)


@pytest.mark.parametrize(
    "build",
    [with_an_input, twice, along_columns, unaligned, changed, state_of],
)
def test_what_is_more_than_a_join_of_results_stays(build):
    after, before = joined(build)
    assert after is before


def test_a_part_that_is_an_output_is_written_to_both_by_one_dispatch():
    after, _ = joined(with_an_output)
    assert len(after.joins) == 1 and len(after.dispatches) == 3
    assert [len(d.outputs) for d in after.dispatches] == [1, 1, 2]


def test_a_copy_joins_nothing():
    (op,) = graph_of(lambda b: [b.generic([b.input("x", (2, ROW), F32)], [maps(0, 1)], (2, ROW), A0)]).ops
    assert outermost_parts(op) == []


def test_rows_in_another_order_are_no_part():
    after, before = joined(reordered)
    assert after is before or all(len(parts) == 2 for parts in after.joins.values())
    check_graph("cpu", reordered)


def nested(b):
    """A join of joins, whose results have a reader each too."""
    results = products(b, 4)
    inner = b.concat(results[2:], 0)
    outer = b.concat([*results[:2], inner], 0)
    return [outer, unary(b, "tanh", results[3]), unary(b, "exp", inner)]


def wide(b):
    """Parts of 256 bytes, as GPUs ask for, with readers of the whole and of a part in one dispatch."""
    results = products(b, 3)
    whole = b.concat(results, 0)
    both = b.generic([whole, results[1]], [maps(0, 1), maps(None, 1)], (3, ROW), op("add", A0, A1))
    return [both, whole]


@pytest.mark.parametrize("device", ["cpu", "vulkan"])
@pytest.mark.parametrize("build", [steps, reshaped, with_an_output, nested, wide, reordered, state_of])
def test_joined_results_are_those_of_the_interpreter(device, build):
    check_graph(device, build)


def test_a_plan_names_the_parts():
    with compiled(graph_of(steps), "cpu") as model:
        parts = [v for v in model.plan.values if v.part_of is not None]
    assert [v.part_offset for v in parts] == [0, 4 * ROW, 8 * ROW]


def test_writers_of_parts_stay_before_the_readers_of_the_whole():
    def build(b):
        x, y, z = (b.input(name, (1, ROW), F32) for name in "xyz")
        whole = b.concat([unary(b, "exp", x), unary(b, "tanh", y)], 0)
        return [matmul(b, whole, weight(b)), unary(b, "exp", z)]

    after, _ = joined(build)
    ((_, parts),) = after.joins.items()
    merged = put_side_by_side(after, lambda dispatch: True)
    assert len(merged.dispatches) < len(after.dispatches)
    order = {v: number for number, d in enumerate(merged.dispatches) for v in d.outputs}
    assert all(order[part] < order[after.graph.outputs[0]] for part, _ in parts)
