"""Large batches split into calls in flight together."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence

import numpy as np
import pytest
from support import fake_device
from support.fake_device import gpu_options
from support.plans.builder import PlanBuilder, bound

from mansard import dims
from mansard.dims import Dim, DimLike
from mansard.dtypes import DType
from mansard.errors import (
    DeadlineExceededError,
    ExecutionError,
    InputError,
    QueueFullError,
    ShapeContractError,
)
from mansard.plan.plan import TensorSpec
from mansard.runtime.calls.chunking import Chunking, plan_chunks
from mansard.runtime.memory.signature import Signature

B = Dim("b", 2, 64, 2)
N = Dim("n", 1, 100)
DOUBLE = dims.mul(2, dims.symbol(N))


def specs(*shapes: Sequence[DimLike]) -> list[TensorSpec]:
    return [TensorSpec(f"t{i}", DType.F32, tuple(shape), i) for i, shape in enumerate(shapes)]


def planned(
    inputs: Sequence[Sequence[DimLike]],
    outputs: Sequence[Sequence[DimLike]],
    given: Sequence[Sequence[int]],
    size: int | None = None,
    in_flight: int = 4,
) -> Chunking:
    symbols = {s for shape in (*inputs, *outputs) for d in shape for s in dims.to_expr(d).symbols()}
    signature = Signature(specs(*inputs), list(symbols))
    return plan_chunks(
        signature, specs(*outputs), [np.zeros(shape, np.float32) for shape in given], size, in_flight
    )


n, b = dims.symbol(N), dims.symbol(B)


@pytest.mark.parametrize(
    ("units", "size", "sizes"),
    [
        (12, 4, (4, 4, 4)),
        (13, 4, (4, 4, 4, 1)),
        (3, 4, (3,)),
        (12, None, (3, 3, 3, 3)),
        (13, None, (4, 4, 4, 1)),
        (2, None, (1, 1)),
        (1000, None, (100,) * 10),
    ],
)
def test_a_batch_that_varies_has_a_remainder(units, size, sizes):
    assert planned([[n, 3]], [[n]], [[units, 3]], size).sizes == sizes


@pytest.mark.parametrize(
    ("units", "size", "sizes"), [(14, 4, (4, 4, 4, 2)), (200, None, (50, 50, 50, 50)), (6, None, (2, 2, 2))]
)
def test_sizes_keep_to_the_contract(units, size, sizes):
    assert planned([[b]], [[b]], [[units]], size).sizes == sizes


def test_a_remainder_that_is_too_small_takes_from_the_call_before_it():
    large = dims.symbol(Dim("m", 4, 16, 2))
    assert planned([[large]], [[large]], [[26]], 8).sizes == (8, 8, 6, 4)
    with pytest.raises(ShapeContractError, match="size: dim 'm' is 2"):
        planned([[large]], [[large]], [[26]], 2)


def test_rows_of_a_unit_and_inputs_that_do_not_depend_on_it():
    how = planned([[DOUBLE, 3], [], [7, 7], [n]], [[n], [DOUBLE, 5]], [[20, 3], [], [7, 7], [10]], 4)
    assert how == Chunking((2, 0, 0, 1), (1, 2), (4, 4, 2))


def test_a_fixed_batch_takes_multiples():
    assert planned([[4, 3], [4, 9], []], [[4]], [[12, 3], [4, 9], []]) == Chunking((4, 0, 0), (4,), (1, 1, 1))
    assert planned([[4, 3]], [[4]], [[4, 3]]).sizes == (1,)


@pytest.mark.parametrize(
    ("inputs", "outputs", "given", "message"),
    [
        (
            [[n], [b]],
            [[n]],
            [[4], [4]],
            "no common batch axis: their first dims are 'b' of 't1', 'n' of 't0'",
        ),
        ([[4], [6]], [[4]], [[8], [12]], "no common batch axis"),
        ([[]], [[4]], [[]], "none has an axis at all"),
        ([[4]], [[3]], [[8]], r"t0: f32\[3\] cannot be joined: its first axis is not the batch of 4"),
        ([[4]], [[]], [[8]], "cannot be joined"),
        ([[4]], [[4]], [[10]], "has 10 rows; each call takes 4"),
        ([[4], [4]], [[4]], [[8], [12]], "different sizes: t0: 2, t1: 3"),
        ([[n]], [[7]], [[8]], r"t0: f32\[7\] cannot be split along its first axis by the batch dim 'n'"),
        ([[n]], [[3, n]], [[8]], "cannot be split along its first axis"),
        ([[n, n]], [[n]], [[8, 8]], "cannot be split along its first axis"),
        ([[n]], [[dims.add(n, 1)]], [[8]], "cannot be split along its first axis"),
        ([[n], [5, n]], [[n]], [[8], [5, 8]], "cannot be split along its first axis"),
        ([[n], [n]], [[n]], [[8], [9]], "different sizes: t0: 8, t1: 9"),
        ([[DOUBLE]], [[n]], [[7]], "has 7 rows, not a multiple of 2"),
        ([[n]], [[n]], [[0]], "the batch is empty"),
        ([[n]], [[n]], [[3, 3]], r"has rank 2; the model takes t0: f32\[n\]"),
        ([[n]], [], [[3]], "no outputs"),
    ],
)
def test_what_cannot_be_cut_is_named(inputs, outputs, given, message):
    with pytest.raises(InputError, match=message):
        planned(inputs, outputs, given)


def test_sizes_the_model_does_not_take_are_refused():
    with pytest.raises(InputError, match="size=3: the model was compiled for calls of 4"):
        planned([[4]], [[4]], [[8]], 3)
    with pytest.raises(ShapeContractError, match="size: dim 'n' is 200"):
        planned([[n]], [[n]], [[300]], 200)


# Running ------------------------------------------------------------------------------------------


def chain(count: DimLike, symbols: Sequence[Dim] = ()) -> PlanBuilder:
    """6 x over two devices."""
    builder = PlanBuilder("cpu", "gpu", count=count, symbols=symbols)
    x, y = builder.input(), builder.output(1)
    t, u = builder.value(), builder.value(1)
    builder.segment(0, builder.step("scale", x, t, params=(2,)))
    builder.segment(1, builder.move(t, u), builder.step("scale", u, y, params=(3,)), wait=[(0, 0)])
    return builder


def rows(count: int) -> np.ndarray:
    return np.arange(count, dtype=np.float32)


@pytest.mark.parametrize("kind", ["discrete", "unified"])
def test_outputs_are_joined(make, kind):
    devices = make("cpu"), make("gpu", **gpu_options(kind))
    fixed, varying = bound(chain(6), *devices), bound(chain(n, [N]), *devices)
    assert np.array_equal(fixed.run_in_batches(rows(60)), 6 * rows(60))
    assert fixed.stats.calls == 10
    assert fixed.stats.contexts <= 4
    assert np.array_equal(varying.run_in_batches(rows(60), size=7), 6 * rows(60))
    assert varying.stats.calls == 9
    assert np.array_equal(asyncio.run(varying.run_in_batches_async(x0=rows(61), size=100)), 6 * rows(61))
    assert np.array_equal(varying.run_in_batches(rows(1001)), 6 * rows(1001))


def test_torch_in_torch_out(make):
    torch = pytest.importorskip("torch")
    model = bound(chain(n, [N]), make("cpu"), make("gpu"))
    y = model.run_in_batches(torch.arange(20, dtype=torch.float32), size=6)
    assert torch.equal(y, 6 * torch.arange(20, dtype=torch.float32))


def test_outputs_are_written_in_place_where_the_device_can(make):
    b = PlanBuilder("cpu")
    x, y = b.input(), b.output()
    b.segment(0, b.step("scale", x, y, params=(2,)))
    for alignment, copies in ((1, 0), (4096, 10)):
        model = bound(b, make(alignment=alignment))
        assert np.array_equal(model.run_in_batches(rows(60)), 2 * rows(60))
        assert (model.stats.host_copies > 0) == (copies > 0)


def test_calls_are_in_flight_together_and_no_more_than_may_be(make):
    cpu, gpu = make("cpu"), make("gpu", **gpu_options("discrete"))
    model = bound(chain(6), cpu, gpu, max_in_flight=3, max_queued=0)
    cpu.gate.clear()
    results: list[np.ndarray] = []
    thread = threading.Thread(target=lambda: results.append(model.run_in_batches(rows(60))))
    thread.start()
    while cpu.submissions < 3:
        time.sleep(0.001)
    time.sleep(0.02)
    assert cpu.submissions == 3
    with pytest.raises(QueueFullError):
        model.run_in_batches(rows(12))
    cpu.gate.set()
    thread.join(10)
    assert np.array_equal(results[0], 6 * rows(60))


def test_other_calls_come_between(make):
    cpu = make("cpu")
    model = bound(chain(6), cpu, make("gpu"), max_in_flight=1)
    order: list[str] = []

    async def main() -> None:
        cpu.gate.clear()

        async def large() -> None:
            await model.run_in_batches_async(rows(60))
            order.append("large")

        async def small() -> None:
            await model.run_async(rows(6), priority=1)
            order.append("small")

        tasks = [asyncio.ensure_future(large()), asyncio.ensure_future(small())]
        await asyncio.sleep(0.02)
        cpu.gate.set()
        await asyncio.gather(*tasks)

    asyncio.run(main())
    assert order == ["small", "large"]


def test_the_first_failure_ends_it_and_the_model_works_on(make, monkeypatch):
    model = bound(chain(6), make("cpu"), make("gpu"), max_in_flight=2)
    good = fake_device.KERNELS["scale"]

    def fail_on_thirty(buffers, params):
        if fake_device.floats(buffers[0], 1)[0] == 30:
            raise ExecutionError("thirty")
        good(buffers, params)

    monkeypatch.setitem(fake_device.KERNELS, "scale", fail_on_thirty)
    with pytest.raises(ExecutionError, match="thirty"):
        model.run_in_batches(rows(600))
    with pytest.raises(ExecutionError, match="thirty"):
        asyncio.run(model.run_in_batches_async(rows(600)))
    assert model.stats.calls < 30
    monkeypatch.setitem(fake_device.KERNELS, "scale", good)
    assert np.array_equal(model.run_in_batches(rows(600)), 6 * rows(600))


@pytest.mark.parametrize("blocking", [True, False])
def test_a_deadline_is_for_all_of_it(make, blocking):
    cpu = make("cpu")
    model = bound(chain(6), cpu, make("gpu"), max_in_flight=2)
    cpu.gate.clear()
    with pytest.raises(DeadlineExceededError, match=r"deadline of 0\.03 s"):
        if blocking:
            model.run_in_batches(rows(60), deadline=0.03)
        else:
            asyncio.run(model.run_in_batches_async(rows(60), deadline=0.03))
    cpu.gate.set()
    assert np.array_equal(model.run_in_batches(rows(60), deadline=60), 6 * rows(60))
    assert cpu.log.count("scale") <= 2 + 10


def test_cancelling_gives_all_calls_up(make):
    cpu = make("cpu")
    model = bound(chain(6), cpu, make("gpu"), max_in_flight=2)

    async def main() -> np.ndarray:
        cpu.gate.clear()
        task = asyncio.ensure_future(model.run_in_batches_async(rows(60)))
        await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        cpu.gate.set()
        return await model.run_in_batches_async(rows(12))

    assert np.array_equal(asyncio.run(main()), 6 * rows(12))
    assert model.stats.calls == 2


def test_states_are_refused(make):
    b = PlanBuilder("cpu")
    x, y, state = b.input(), b.output(), b.value(kind="state")
    b.states.append((state, state))
    b.segment(0, b.step("add", state, x, state), b.step("scale", state, y, params=(1,)))
    with pytest.raises(InputError, match="a model with states"):
        bound(b, make()).run_in_batches(rows(12))


def test_a_model_without_work_is_cut_as_well(make):
    """Its calls end at once, each within the start of the next."""
    b = PlanBuilder("cpu")
    x = b.input()
    b.outputs.append(TensorSpec("y0", DType.F32, (b.count,), x))
    model = bound(b, make())
    assert np.array_equal(model.run_in_batches(rows(6000)), rows(6000))
