"""What every driver must do, written once.

A driver joins with an adapter and a class::

    class TestMine(Conformance):
        adapter = MyAdapter()

A test that needs a device to compute carries `computes`, and is skipped with the reason on a device
that declares ``capabilities.simulated``. For other capabilities both answers are tested: a device that
declares late binding must bind late, and one that does not must refuse it.

A driver whose kernels Mansard generates takes `KernelTests` as a second base. An adapter may stand for a
variation of a device: with a feature less, or held to the limits of another.

`PairTests` runs a device with a partner, each waiting for the other: by default with `PartnerAdapter`'s, a
plain device of the suite's own.
"""

from support.conformance.adapter import KERNELS, Adapter, computes
from support.conformance.commands import CommandTests
from support.conformance.kernels import KernelTests
from support.conformance.memory import MemoryTests
from support.conformance.order import OrderTests
from support.conformance.pairs import PairTests, PartnerAdapter


class Conformance(MemoryTests, CommandTests, OrderTests, PairTests):
    """The whole suite."""


__all__ = ["KERNELS", "Adapter", "Conformance", "KernelTests", "PairTests", "PartnerAdapter", "computes"]
