"""Products for matrix units, run by the emulator of kernel IR."""

from __future__ import annotations

import numpy as np

from mansard import dims
from mansard.codegen.loop_nest import Nest
from mansard.codegen.schedules.gpu.gemm import matrix
from mansard.drivers.vulkan.compiler import BACKEND
from mansard.ir.interpreter.graph import interpret
from mansard.ir.scalar import Apply, Arg, Cast
from mansard.passes.fusion.fuse import fuse
from support.graphs import F32, maps
from support.kernels.emulator import run

TARGET = BACKEND.parse_target(
    "vulkan:1.3+float16+int8+cooperative_matrix+bfloat16_matrix+matrix_16x16x16_f16_f32+matrix_16x16x16_bf16_f32"
    "+matrix_16x16x32_i8_i32+workgroup=256+shared=49152+subgroup=32"
)
RNG = np.random.default_rng(5)


def random(dtype, *shape):
    return RNG.standard_normal(shape).astype(dtype.numpy)


def product(b, x, w, *, transposed=False, out=F32):
    """x (M, K) times w (K, N) or (N, K), in f32."""
    (m, k), n = x.type.shape, w.type.shape[0 if transposed else 1]
    body = Apply("mul", (Cast(Arg(0, x.type.dtype), F32), Cast(Arg(1, w.type.dtype), F32)), F32)
    second = maps(1, 2) if transposed else maps(2, 1)
    y = b.generic([x, w], [maps(0, 2), second], (m, n, k), body, reduced=1, combiner="add")
    if out is F32:
        return y
    return b.generic([y], [maps(0, 1)], (m, n), Cast(Arg(0, F32), out))


def check(graph, inputs, tile=None, values=None, tolerance=1e-5):
    """The one dispatch of a graph on the emulator against the interpreter."""
    (dispatch,) = fuse(graph).dispatches
    nest = Nest(dispatch)
    assert matrix.applies(nest, TARGET)
    scheduled = matrix.schedule(nest, TARGET, "k", tile.parameters() if tile else None)
    BACKEND.compile_kernel(scheduled.kernel, TARGET)
    names = {v.name: i for v, i in zip(graph.inputs, inputs, strict=True)}
    values = values or {}
    outputs = [np.zeros(v.type.concrete(values), v.type.dtype.numpy) for v in dispatch.outputs]
    arrays = [*(names[v.name] for v in dispatch.inputs), *outputs]
    params = [dims.evaluate(p, values) for p in scheduled.params]
    run(scheduled.kernel, arrays, params, tuple(dims.evaluate(g, values) for g in scheduled.grid), 32)
    for a, b in zip(outputs, interpret(graph, inputs), strict=True):
        scale = np.abs(b.astype(np.float64)).max()
        np.testing.assert_allclose(
            a.astype(np.float64), b.astype(np.float64), atol=tolerance * scale, rtol=tolerance
        )
