"""The driver conformance suite: what every driver must do, for the tests of plug-ins too.

A driver joins with an adapter and a class::

    from mansard.testing import Adapter, Conformance

    class MyAdapter(Adapter): ...

    class TestMine(Conformance):
        adapter = MyAdapter()

A test that needs a device to compute carries `computes`, and is skipped with the reason on a device
that declares ``capabilities.simulated``. For other capabilities both answers are tested: a device that
declares late binding must bind late, and one that does not must refuse it.

A driver whose kernels Mansard generates takes `KernelTests` as a second base, one whose programs take turns
in its memory `SwapTests`. An adapter may stand for a
variation of a device: with a feature less, or held to the limits of another.

`PairTests` runs a device with a partner, each waiting for the other: by default with `PartnerAdapter`'s, a
plain device of the suite's own.

Importing this package imports pytest, which nothing else in Mansard does.
"""

import pytest

# Failing asserts of the suite show their operands, as those of test modules do.
pytest.register_assert_rewrite(
    *(
        f"mansard.testing.{name}"
        for name in ("commands", "kernels", "memory", "order", "pairs", "results", "swapping")
    )
)

from mansard.testing.adapter import KERNELS, Adapter, computes  # noqa: E402  # after the registration
from mansard.testing.commands import CommandTests  # noqa: E402
from mansard.testing.kernels import KernelTests  # noqa: E402
from mansard.testing.memory import MemoryTests  # noqa: E402
from mansard.testing.order import OrderTests  # noqa: E402
from mansard.testing.pairs import PairTests, PartnerAdapter  # noqa: E402
from mansard.testing.swapping import SwapTests  # noqa: E402


class Conformance(MemoryTests, CommandTests, OrderTests, PairTests):
    """The whole suite."""


__all__ = [
    "KERNELS",
    "Adapter",
    "Conformance",
    "KernelTests",
    "PairTests",
    "PartnerAdapter",
    "SwapTests",
    "computes",
]
