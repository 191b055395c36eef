"""Large inputs: a call is handed over first, and devices fetch what the host has copied so far."""

from __future__ import annotations

import numpy as np
import pytest
from support.fake_device import gpu_options
from support.plans.builder import PlanBuilder, bound

from mansard.errors import DeviceError
from mansard.runtime.memory import staged_upload
from mansard.runtime.memory.staged_upload import MIN_PIECE_BYTES, piece_bytes, split_upload

COUNT = (5 << 20) // 2  # 10 MB
CARD = {**gpu_options("discrete"), "transfer_queue": True}
ARRAY = np.linspace(0, 1, COUNT, dtype=np.float32)


def summed():
    """x0 + 2 x1 + 3 x0."""
    b = PlanBuilder("gpu", count=COUNT)
    x0, x1 = b.input(), b.input()
    scaled, tripled, both, y = b.value(), b.value(), b.value(), b.output()
    b.segment(0, b.step("scale", x1, scaled, params=(2,)), b.step("scale", x0, tripled, params=(3,)))
    b.segment(0, b.step("add", x0, scaled, both), wait=((0, 0),))
    b.segment(0, b.step("add", both, tripled, y), wait=((0, 1),))
    return b


def expected(first, second):
    return first + 2 * second + 3 * first


@pytest.mark.parametrize(
    "size", [1, MIN_PIECE_BYTES, MIN_PIECE_BYTES + 1, 100 * MIN_PIECE_BYTES, 999_999_999]
)
def test_pieces_cover_everything_once(size):
    limit = piece_bytes(size)
    pieces = split_upload(size, limit)
    assert pieces[0][0] == 0 and len(pieces) == -(-size // limit) <= 30
    assert [begin + length for begin, length in pieces] == [*(begin for begin, _ in pieces[1:]), size]
    assert min(length for _, length in pieces) > 0 and max(length for _, length in pieces) <= limit + 4096


def test_inputs_are_fetched_in_pieces_and_count_as_one_copy(make):
    gpu = make("gpu", **CARD)
    model = bound(summed(), gpu)
    for factor in (1, 2, 3):
        first, second = factor * ARRAY, ARRAY[::-1].copy()
        np.testing.assert_allclose(model(first, second), expected(first, second))
    cut = split_upload(ARRAY.nbytes, piece_bytes(2 * ARRAY.nbytes))
    assert gpu.log_of_transfers.count("upload x0") == len(cut) > 1
    stats = model.stats
    assert (stats.device_copies, stats.device_bytes) == (9, 9 * ARRAY.nbytes)
    assert (stats.host_copies, stats.host_bytes) == (9, 9 * ARRAY.nbytes)
    profile = model.profile(ARRAY, ARRAY)
    assert (profile.copies.device, profile.copies.device_bytes) == (3, 3 * ARRAY.nbytes)


@pytest.mark.parametrize("lockstep", [False, True])
def test_the_host_copies_when_the_call_is_on_its_way(make, monkeypatch, lockstep):
    gpu = make("gpu", **CARD)
    model = bound(summed(), gpu)
    seen = []
    copy_all = staged_upload.copy_all

    def watched(copies):
        seen.append(gpu.submissions)
        copy_all(copies)

    monkeypatch.setattr(staged_upload, "copy_all", watched)
    before = gpu.submissions
    model.profile(ARRAY, ARRAY, requests=1, lockstep=lockstep)
    assert seen[0] == before + (not lockstep)


def test_an_interrupted_copy_ends_the_call_and_nothing_else(make, monkeypatch):
    model = bound(summed(), make("gpu", **CARD))
    copy_all = staged_upload.copy_all

    def interrupted(copies):
        copy_all(copies[:2])
        raise KeyboardInterrupt

    for _ in range(2):
        with monkeypatch.context() as patch:
            patch.setattr(staged_upload, "copy_all", interrupted)
            with pytest.raises(KeyboardInterrupt):
                model(ARRAY, ARRAY)
        np.testing.assert_allclose(model(ARRAY, ARRAY), 6 * ARRAY, rtol=1e-6)


def test_what_one_device_refuses_does_not_hold_up_another(make):
    b = PlanBuilder("gpu", "other", count=COUNT)
    for slot in (0, 1):
        x, y = b.input(slot), b.output(slot)
        b.segment(slot, b.step("scale", x, y, params=(2,)))
    gpu, other = make("gpu", **CARD), make("other", **CARD)
    model = bound(b, gpu, other)
    for _ in range(2):
        other.refuse_submissions = DeviceError("no more work")
        with pytest.raises(DeviceError, match="no more work"):
            model(ARRAY, ARRAY)
        other.refuse_submissions = None
        for result in model(ARRAY, 2 * ARRAY):
            assert result[-1] in (2, 4)
