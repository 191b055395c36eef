"""Attention reads packed caches where they are."""

import numpy as np
import pytest

from mansard.dtypes import DType
from mansard.ir.graph import GraphBuilder
from mansard.ir.interpreter.graph import interpret
from mansard.ir.scalar import Apply, Arg, Cast
from mansard.ir.types import IndexMap, Linear
from mansard.passes.canonical.dce import eliminate_dead
from mansard.passes.canonical.lower_attention import lower_attention
from mansard.passes.canonical.unpack_states import unpack_states

LENGTH = 10


def graph(read_elsewhere=False, of_state=True):
    """Attention over keys of i8 with a scale for each position, which are values, too."""
    builder = GraphBuilder("packed")
    query = builder.input("query", (1, 2, 3, 8), DType.F32)
    make = builder.state if of_state else builder.input
    codes, scales = make("codes", (1, 2, LENGTH, 8), DType.I8), make("scales", (1, 2, LENGTH), DType.F32)
    maps = (IndexMap.identity(4), IndexMap(tuple(Linear.dim(d) for d in range(3))))
    body = Apply("mul", (Cast(Arg(0, DType.I8), DType.F32), Arg(1, DType.F32)), DType.F32)
    keys = builder.generic((codes, scales), maps, codes.type.shape, body, name="unpacked")
    out = builder.attention(query, keys, keys, None, 0.5)
    if of_state:
        builder.update_state(scales, scales)
    return lower_attention(builder.build([out, keys] if read_elsewhere else [out]))


def values(generator):
    return {
        "query": generator.standard_normal((1, 2, 3, 8)).astype(np.float32),
        "codes": generator.integers(-127, 128, (1, 2, LENGTH, 8)).astype(np.int8),
        "scales": generator.random((1, 2, LENGTH)).astype(np.float32) / 50,
    }


def test_products_of_attention_unpack_the_state():
    before = graph()
    after = unpack_states(before)
    assert "unpacked" in str(before) and "unpacked" not in str(eliminate_dead(after))
    given = values(np.random.default_rng(0))
    query = {"query": given.pop("query")}
    (expected,), (got,) = interpret(before, query, dict(given)), interpret(after, query, dict(given))
    np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("options", [{"read_elsewhere": True}, {"of_state": False}])
def test_what_is_read_elsewhere_or_no_state_is_unpacked_once(options):
    before = graph(**options)
    assert unpack_states(before) is before
