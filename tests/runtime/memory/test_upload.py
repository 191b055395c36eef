"""Uploads through staging memory."""

from contextlib import closing

import numpy as np
import pytest
from support.fake_device import FakeDevice, gpu_options

from mansard.hal import MemoryKind
from mansard.runtime.memory import upload as module

RANGES = ((0, 3), (16, 200), (200, 201), (512, 1000))


@pytest.mark.parametrize("staging", [64, 100, 1 << 20])
def test_parts_come_to_their_places_one_half_of_the_staging_memory_after_the_other(staging, monkeypatch):
    monkeypatch.setattr(module, "STAGING_BYTES", staging)
    contents = {
        span: np.random.default_rng(span).integers(1, 256, span[1] - span[0], np.uint8) for span in RANGES
    }
    with closing(FakeDevice("gpu", **gpu_options("discrete"))) as device:
        buffer = device.allocate(1024, MemoryKind.DEVICE, "weights")
        assert buffer.host_pointer is None
        module.upload(device, buffer, ((start, contents[start, end]) for start, end in RANGES))
        for (start, end), data in contents.items():
            np.testing.assert_array_equal(buffer.data[start:end], data)
        buffer.close()


def test_an_error_while_a_part_is_made_leaves_nothing_behind():
    def parts():
        yield 0, np.ones(8, np.uint8)
        raise ValueError("no more")

    with closing(FakeDevice("gpu", **gpu_options("discrete"))) as device:
        buffer = device.allocate(64, MemoryKind.DEVICE, "weights")
        with pytest.raises(ValueError, match="no more"):
            module.upload(device, buffer, parts())
        buffer.close()
