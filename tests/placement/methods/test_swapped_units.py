"""Units whose programs may take turns: what they take of the memory, and when that is worth it."""

from __future__ import annotations

import numpy as np
import pytest
from support.placements import profile

from mansard.placement.methods.assign import assign
from mansard.placement.methods.units import Chain, Unit

NPU, CPU, TURNS = 0, 1, 2
PROFILES = [profile("npu", 0.0, 1e9, True), profile("cpu", 0.0, 1e9, True), profile("npu", 0.0, 1e9, True)]


def chain(count, swapped):
    """Layers of 10 bytes, a second on the NPU and four on the CPU, ``swapped`` with a load on the NPU."""
    seconds = np.array([[1.0, 4.0, swapped]])
    units = [Unit({}, {}, seconds.copy(), 10, programs={(0, NPU): (10,)}) for _ in range(count)]
    return Chain(tuple(units), np.zeros((count, 1)), ())


@pytest.mark.parametrize(("swapped", "others"), [(2.0, TURNS), (5.0, CPU)])
@pytest.mark.parametrize("wanted", [None, NPU])
def test_what_does_not_fit_takes_turns_or_goes_elsewhere(swapped, others, wanted):
    found = assign(chain(6, swapped), PROFILES, [25, None, None], [1.0], [wanted], {TURNS: NPU})
    devices = [option[0] for option in found.options]
    assert devices.count(NPU) == 2 and devices.count(others) == 4
    assert found.held[NPU] == 20 and found.held[CPU] == 10 * devices.count(CPU)


def test_programs_of_two_roles_are_two_copies():
    """Each embeds the constants; a device that reads them in place holds them once."""
    seconds = np.array([[1.0, 4.0], [1.0, 4.0]])
    embedding = Unit({}, {}, seconds, 10, programs={(0, NPU): (10, 3), (1, NPU): (12,)})
    assert embedding.held((NPU, NPU), NPU) == 25 and embedding.held((NPU, CPU), NPU) == 13
    assert embedding.held((NPU, CPU), CPU) == 10 and embedding.held((CPU, CPU), NPU) == 0
    assert Unit({}, {}, seconds, 10, 4).held((NPU, NPU), NPU) == 14


def test_states_stay_where_their_programs_take_turns():
    unit = Unit({}, {}, np.array([[1.0, 4.0, 2.0]]), 10, 7, programs={(0, NPU): (10,)})
    found = assign(
        Chain((unit,), np.zeros((1, 1)), ()), PROFILES, [8, None, None], [1.0], [None], {TURNS: NPU}
    )
    assert found.options == ((TURNS,),) and found.held[NPU] == 7
