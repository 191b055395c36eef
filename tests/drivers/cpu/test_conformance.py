"""The cpu driver in the conformance suite."""

from __future__ import annotations

from support.adapters import CpuAdapter

from mansard.testing import Conformance


class TestCpu(Conformance):
    adapter = CpuAdapter()
