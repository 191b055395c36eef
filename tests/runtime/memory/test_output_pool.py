"""Large outputs of devices with memory of their own: where they land is what the caller gets."""

from __future__ import annotations

import asyncio
import gc
import threading
from types import SimpleNamespace

import numpy as np
import pytest
from support.fake_device import gpu_options
from support.plans.builder import PlanBuilder, bound
from support.plans.compiled import SIDE, chain, planned

from mansard.api import Model
from mansard.errors import DeviceError, OutOfMemoryError
from mansard.ir.interpreter.graph import interpret
from mansard.runtime.memory import output_pool
from mansard.runtime.memory.output_pool import OutputPool

COUNT = 1 << 18
BYTES = 4 * COUNT
CARD = {**gpu_options("discrete"), "import_host": True, "transfer_queue": True, "transfer_bytes": 1 << 16}
ARRAY = np.linspace(0, 1, COUNT, dtype=np.float32)


def doubled(count=COUNT, outputs=1):
    b = PlanBuilder("gpu", count=count)
    x = b.input()
    results = [b.output() for _ in range(outputs)]
    b.segment(0, *(b.step("scale", x, y, params=(2 + n,)) for n, y in enumerate(results)))
    return b


def held(model):
    return sum(row.bytes for row in model.memory() if row.what == "staging" and "imported" in row.how)


def test_results_are_not_copied_by_the_host(make):
    model = bound(doubled(outputs=2), make("gpu", **CARD))
    for _ in range(3):
        for n, result in enumerate(model(ARRAY)):
            np.testing.assert_array_equal(result, (2 + n) * ARRAY)
    assert (model.stats.device_copies, model.stats.device_bytes) == (9, 9 * BYTES)
    assert (model.stats.host_copies, model.stats.host_bytes) == (3, 3 * BYTES)  # inputs


def test_results_live_on_while_somebody_looks_at_them(make):
    gpu = make("gpu", **CARD)
    model = bound(doubled(), gpu)
    kept = [model(factor * ARRAY)[factor::7] for factor in (1, 2, 3, 4)]
    model(9 * ARRAY)
    for factor, part in zip((1, 2, 3, 4), kept, strict=True):
        np.testing.assert_array_equal(part, 2 * factor * ARRAY[factor::7])
    model.close()
    assert gpu.live == 0
    for factor, part in zip((1, 2, 3, 4), kept, strict=True):
        part += 1  # and they are the caller's to change
        np.testing.assert_array_equal(part, 2 * factor * ARRAY[factor::7] + 1)


def test_memory_comes_again_when_results_are_dropped(make):
    gpu = make("gpu", **CARD)
    model = bound(doubled(), gpu)
    places = set()
    for _ in range(6):
        result = model(ARRAY)
        places.add(result.ctypes.data)
    assert len(places) == 2  # the last result is there while the next one comes
    assert held(model) == BYTES
    del result
    gc.collect()
    assert held(model) == 2 * BYTES


@pytest.mark.parametrize("limit", [None, 2 * BYTES])
def test_who_holds_on_to_results_gets_copies(make, limit):
    model = bound(doubled(), make("gpu", **CARD))
    if limit is not None:
        model.bind()._environment.output_pool._max_lent = limit
    lent = 3 if limit is None else 2
    for _ in range(2):
        before = model.stats.host_copies
        kept = [model(factor * ARRAY) for factor in range(5)]
        assert model.stats.host_copies - before == 5 + 5 - lent  # inputs, and outputs that are copied
        assert held(model) == BYTES
        for factor, result in enumerate(kept):
            np.testing.assert_array_equal(result, 2 * factor * ARRAY)
        del kept, result


def test_calls_in_flight_and_batches(make):
    model = bound(doubled(), make("gpu", **CARD))

    async def concurrently():
        return await asyncio.gather(*(model.run_async(factor * ARRAY) for factor in range(12)))

    for factor, result in enumerate(asyncio.run(concurrently())):
        np.testing.assert_array_equal(result, 2 * factor * ARRAY)
    whole = np.concatenate([ARRAY, 3 * ARRAY])
    np.testing.assert_array_equal(model.run_in_batches(whole, size=COUNT), 2 * whole)


def test_failed_calls_leave_nothing_behind(make):
    b = PlanBuilder("gpu", count=COUNT)
    x, y = b.input(), b.output()
    b.segment(0, b.step("scale", x, y, params=(2,)), b.step("explode", y, params=()))
    gpu = make("gpu", **CARD)
    model = bound(b, gpu)
    for _ in range(3):
        with pytest.raises(Exception, match="exploded"):
            model(ARRAY)
    model.close()
    assert gpu.live == 0


def test_outputs_that_a_small_copy_fills_stay_where_they_are(make):
    model = bound(doubled(count=64), make("gpu", **CARD))
    model(ARRAY[:64])
    assert model.stats.host_copies == 2


def test_devices_that_import_no_pages_copy_as_before(make):
    model = bound(doubled(), make("gpu", **CARD | {"import_host": False}))
    np.testing.assert_array_equal(model(ARRAY), 2 * ARRAY)
    assert model.stats.host_copies == 2


def test_pages_that_cannot_be_imported_now_are_replaced_by_device_memory(make, monkeypatch):
    gpu = make("gpu", **CARD)
    model = bound(doubled(), gpu)
    importing = gpu.import_host

    def refuse(array, label=""):
        if array.nbytes > 1 << 17:
            raise DeviceError("too many locked pages")
        return importing(array, label)

    monkeypatch.setattr(gpu, "import_host", refuse)
    for factor in (1, 2):
        np.testing.assert_array_equal(model(factor * ARRAY), 2 * factor * ARRAY)
    assert model.stats.host_copies == 4
    model.close()
    assert gpu.live == 0


def test_what_is_kept_is_bounded(make, monkeypatch):
    monkeypatch.setattr(output_pool, "MAX_IDLE_BYTES", 3 << 20)
    pool = OutputPool([SimpleNamespace(device=make("gpu", **CARD))])
    shape, dtype = (1 << 20,), np.dtype(np.uint8)
    arrays = [pool.lend(pool.acquire(1 << 20, ()), shape, dtype) for _ in range(6)]
    assert pool.held == {}
    del arrays
    gc.collect()
    assert pool.held == {(): 3 << 20}
    pool.release(pool.acquire(8 << 20, ()))
    assert pool.held == {}
    pool.release(pool.acquire(8 << 20, (0,)))
    assert pool.held == {(0,): 8 << 20}  # what calls take, importing it anew would cost in every call
    pool.release(pool.acquire(30 << 20, ()))
    assert pool.held == {(0,): 8 << 20}
    pool.close()


def test_pages_that_nobody_wants_go_when_results_do(monkeypatch):
    monkeypatch.setattr(output_pool, "MAX_IDLE_BYTES", 20 << 20)
    pool = OutputPool([])
    arrays = [pool.array((9 << 20,), np.dtype(np.uint8)) for _ in range(6)]
    arrays[0][:] = 1
    del arrays  # and nothing else is done
    assert [block.size for block in pool._idle] == [9 << 20] * 2
    assert not pool._returned


def test_large_results_in_place_take_turns_in_pages_too(make):
    count = 4 << 20
    b = PlanBuilder("cpu", count=count)
    x, y = b.input(), b.output()
    b.segment(0, b.step("scale", x, y, params=(2,)))
    model = bound(b, make())
    array = np.ones(count, np.float32)
    places = set()
    for _ in range(5):
        result = model(array)
        places.add(result.ctypes.data)
        assert result[0] == result[-1] == 2
    assert len(places) == 2
    assert model.stats.host_copies == 0
    assert sum(row.bytes for row in model.memory() if row.what == "outputs" and row.held) == 4 * count


def test_arrays_may_end_in_any_thread():
    pool = OutputPool([])

    def work():
        for _ in range(200):
            array = pool.lend(pool.acquire(1 << 16, ()), (1 << 14,), np.dtype(np.float32))
            assert array is not None
            array[:] = threading.get_ident() % 1000
            assert (array == threading.get_ident() % 1000).all()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(pool.held.values()) <= 8 << 16


def test_memory_that_is_not_there_is_an_error():
    with pytest.raises(OutOfMemoryError, match="for outputs"):
        OutputPool([]).acquire(1 << 60, ())


@pytest.mark.parametrize("kinds", [("cpu", "gpu"), ("gpu", "cpu")])
def test_pieces_of_an_output_from_two_devices_meet_where_the_caller_finds_it(make, kinds):
    partitioned = planned(chain(["rows"]), 2, (24, 40), lambda: 0)
    card = {**CARD, "transfer_bytes": 1}
    devices = {f"d{n}": make(f"d{n}", **(card if kind == "gpu" else {})) for n, kind in enumerate(kinds)}
    x = np.ones((SIDE, SIDE), np.float32)
    (expected,) = interpret(partitioned.graph, [x])
    with Model(partitioned.plan, partitioned.resources, devices) as model:
        for _ in range(3):
            np.testing.assert_allclose(model(x), expected, atol=1e-5)
        assert model.stats.host_copies == 3  # inputs
