"""Windows over bytes under qemu-user, against the interpreter, to the last bit."""

from __future__ import annotations

import numpy as np
import pytest
from support.emulation.cpus import CPUS
from support.emulation.emulator import Batch
from support.quantised.windows import CHANNELS, DENSE, PICTURES, window_graph

from mansard.compiler import CompileOptions, compile_graph
from mansard.ir.interpreter.graph import interpret
from mansard.placement import PlacementOptions

pytestmark = pytest.mark.emulation
CASES = [DENSE[name] for name in ("same 3x3", "signed", "strided")]
CASES += [PICTURES["computed planes"], PICTURES["signed 7x7"], CHANNELS["3x3"], CHANNELS["zero point"]]


@pytest.mark.parametrize(
    "cpu", [cpu for cpu in CPUS if cpu.name in ("neoverse-v1", "cortex-a76")], ids=lambda cpu: cpu.name
)
def test_windows_over_bytes(cpu):
    target, emulated = cpu.choice()
    batch, wanted = Batch(cpu.arch, emulated), []
    for case in CASES:
        graph, inputs = window_graph(case)
        options = CompileOptions(targets=(target,), placement=PlacementOptions(fallback="error"), cache=False)
        compiled = compile_graph(graph, options)
        batch.call(compiled, batch.load(compiled), inputs)
        wanted.append(interpret(graph, inputs))
    for actual, expected in zip(batch.run(), wanted, strict=True):
        np.testing.assert_array_equal(actual[0], expected[0])
