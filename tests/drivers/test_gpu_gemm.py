"""Matrix products through shared memory on GPUs, against the reference interpreter."""

import numpy as np
import pytest
from graph_runner import check, compare, compiled, outputs
from graphs import A0, A1, F32, binary, maps, matmul, op, unary

from mansard import dims
from mansard.dims import Dim
from mansard.dtypes import DType
from mansard.ir import GraphBuilder, IndexMap, Linear
from mansard.ir.interpreter import interpret
from mansard.ir.scalar import Arg, Cast, Const

pytestmark = pytest.mark.vulkan
RNG = np.random.default_rng(23)
BASELINE, WIDE = "vulkan:1.3", "vulkan"


@pytest.fixture(autouse=True)
def needs_vulkan():
    from mansard.hal import registry

    if not any(i.driver == "vulkan" and i.supported for i in registry.devices()):
        pytest.skip("no Vulkan 1.3 device")


def random(*shape, dtype=np.float32):
    return RNG.standard_normal(shape).astype(dtype)


@pytest.mark.parametrize("target", [BASELINE, WIDE])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("shape", [(64, 64, 64), (130, 50, 17), (33, 101, 40), (5, 7, 9), (49, 36, 200)])
def test_matmul_with_epilogue(shape, transposed, target):
    m, n, k = shape
    b = GraphBuilder()
    x, bias = b.input("x", (m, k), F32), b.input("b", (n,), F32)
    w = b.input("w", (n, k) if transposed else (k, n), F32)
    y = binary(b, "add", matmul(b, x, w, transposed=transposed), bias)
    y = b.generic([y], [maps(0, 1)], (m, n), op("max", A0, Const(0.0, F32)))
    check(b.build([y]), [random(m, k), random(n), random(*w.type.shape)], target)
