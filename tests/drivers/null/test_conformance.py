"""The null driver in the conformance suite."""

from __future__ import annotations

from support.adapters import NullAdapter

from mansard.testing import Conformance


class TestNull(Conformance):
    adapter = NullAdapter()
