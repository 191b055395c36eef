"""Products under qemu-user, against the interpreter: with weights in rows, in tiles and packed on the way,
and with matrices that indices choose out of stacks."""

from __future__ import annotations

import pytest
from support.emulation.cpus import CPUS
from support.emulation.emulator import Batch
from support.graph_runner import compare

from mansard.compiler import CompileOptions, compile_graph
from mansard.dtypes import DType
from mansard.ir.interpreter.graph import interpret
from mansard.passes.products.quantisation import quantisation
from mansard.passes.products.weight_only import quantise_weights
from mansard.placement import PlacementOptions
from tests.kernels.test_gathered_products import constant_stack
from tests.kernels.test_rows_products import array, graph

pytestmark = pytest.mark.emulation
CASES = ((52, 160, DType.BF16), (272, 64, DType.BF16), (32, 96, DType.F32))


AARCH64 = pytest.mark.parametrize(
    "cpu", [cpu for cpu in CPUS if cpu.name in ("neoverse-v1", "cortex-a76")], ids=lambda cpu: cpu.name
)


@AARCH64
def test_weights_in_rows(cpu):
    target, emulated = cpu.choice()
    batch, wanted = Batch(cpu.arch, emulated), []
    for columns, depth, dtype in CASES:
        built = graph(columns, depth, dtype)
        options = CompileOptions(targets=(target,), placement=PlacementOptions(fallback="error"), cache=False)
        compiled = compile_graph(built, options)
        model = batch.load(compiled)
        weights, bias = array(dtype, columns, depth), array(DType.F32, columns)
        for rows in (7, 40):
            inputs = [array(dtype, rows, depth), weights, bias]
            batch.call(compiled, model, inputs)
            wanted.append(interpret(built, inputs))
    for actual, expected in zip(batch.run(), wanted, strict=True):
        compare(actual, expected, 1e-5, 1e-5)


@AARCH64
def test_chosen_matrices(cpu):
    target, emulated = cpu.choice()
    batch, wanted = Batch(cpu.arch, emulated), []
    for rows, parts, columns in ((1, 0, 48), (8, 0, 48), (1, 3, 48), (4, 0, 40), (1, 0, 40)):
        for how in (None, {"kind": "int4"}, {"kind": "int8", "activations": "int8"}):
            built, inputs = constant_stack(rows, DType.BF16, columns=columns, parts=parts)
            if how is not None:
                built = quantise_weights(built, quantisation(min_elements=1, **how))
            placement = PlacementOptions(fallback="error")
            compiled = compile_graph(
                built, CompileOptions(targets=(target,), placement=placement, cache=False)
            )
            batch.call(compiled, batch.load(compiled), inputs)
            wanted.append(interpret(built, inputs))
    for actual, expected in zip(batch.run(), wanted, strict=True):
        compare(actual, expected, 1e-5, 1e-5)
