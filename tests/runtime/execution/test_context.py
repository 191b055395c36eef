"""Which device gets its batches of a call first."""

from types import SimpleNamespace

import pytest

from mansard.runtime.execution.recorded import submission_order


def slot(host_threads):
    return SimpleNamespace(device=SimpleNamespace(capabilities=SimpleNamespace(host_threads=host_threads)))


def submissions(*waits):
    return [SimpleNamespace(wait=tuple(wait)) for wait in waits]


@pytest.mark.parametrize(
    ("gpu_waits", "expected"),
    [
        (([], [(0, 0)]), [1, 2, 0]),  # it begins at once: the host's cores come last
        (([(0, 0)], [(0, 1)]), [0, 1, 2]),  # nothing of it can begin before the CPU
        ((), [0, 1, 2]),
    ],
)
def test_the_hosts_cores_come_last_unless_all_others_wait_for_them(gpu_waits, expected):
    slots = [slot(True), slot(False), slot(False)]
    recorded = [submissions([], [(1, 0)]), submissions(*gpu_waits), submissions([(0, 0)])]
    assert submission_order(slots, recorded) == expected
