"""A scalar op from outside the package, from its declaration to kernels on every device."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from support.graph_runner import check
from support.graphs import F32, maps, op

from mansard.codegen.math import register_scalar_lowering
from mansard.codegen.math.pieces import lit
from mansard.compiler.identity import dispatch_from_data, dispatch_key, dispatch_to_data
from mansard.dtypes import DType
from mansard.errors import ArtifactError, CodegenError, CompileError, VerificationError
from mansard.ir import Domain, Graph, GraphBuilder, ScalarOp, register_scalar_op
from mansard.ir.graph_data import graph_from_bytes, graph_to_bytes
from mansard.ir.interpreter.graph import interpret
from mansard.ir.parser import parse_graph
from mansard.ir.scalar import Apply, Arg, Const
from mansard.ir.scalar_ops import Array, Infix, find_scalar_op, scalar_ops
from mansard.passes.fusion.fuse import fuse
from mansard.placement.cost import estimate_work

RNG = np.random.default_rng(3)
I32 = DType.I32


def _softsign(x: Array) -> Array:
    return np.asarray(x / (1 + np.abs(x)))


def _expand_softsign(b, x):
    return b.binary("div", x, b.add(b.unary("abs", x), lit(b, x, 1.0)))


def _divides(a: Array, b: Array) -> Array:
    return np.asarray(np.where(a == 0, False, np.fmod(b, np.where(a == 0, 1, a)) == 0))


def _expand_divides(b, x, y):
    from mansard.codegen.math import apply

    rest = apply(b, "rem", [y, x])
    whole = b.compare("eq", rest, b.const(0, x.type.dtype))
    return b.binary("and", whole, b.compare("ne", x, b.const(0, x.type.dtype)))


@pytest.fixture(scope="module", autouse=True)
def declared():
    if find_scalar_op("softsign") is None:
        register_scalar_op(
            ScalarOp("softsign", 1, {Domain.FLOAT: _softsign}, operations=3, revision="1", recomputable=False)
        )
        register_scalar_op(ScalarOp("logaddexp", 2, {Domain.FLOAT: np.logaddexp}, operations=26))
        register_scalar_op(ScalarOp("divides", 2, {Domain.INT: _divides}, gives_bool=True))
        register_scalar_lowering("softsign", _expand_softsign, Domain.FLOAT, contractible=True)
        register_scalar_lowering("logaddexp", _expand_logaddexp, Domain.FLOAT)
        register_scalar_lowering("divides", _expand_divides, Domain.INT)


def _expand_logaddexp(b, x, y):
    from mansard.codegen.math import apply

    distance = b.unary("neg", b.unary("abs", b.sub(x, y)))
    return b.add(b.binary("max", x, y), apply(b, "log1p", [apply(b, "exp", [distance])]))


def model(dtype: DType = F32) -> Graph:
    b = GraphBuilder("outside")
    x, y = b.input("x", (5, 37), dtype), b.input("y", (37,), dtype)
    a0, a1 = Arg(0, dtype), Arg(1, dtype)
    sums = b.generic([x, y], [maps(0, 1), maps(1)], (5, 37), op("logaddexp", op("softsign", a0), a1))
    total = b.generic([sums], [maps(0, 1)], (5, 37), op("softsign", a0), reduced=1, combiner="add")
    return b.build([sums, total])


def integers() -> Graph:
    b = GraphBuilder()
    x, y = b.input("x", (64,), I32), b.input("y", (64,), I32)
    divides = Apply("divides", (Arg(0, I32), Arg(1, I32)), DType.BOOL)
    return b.build([b.generic([x, y], [maps(0)] * 2, (64,), divides)])


def random(*shape: int, dtype: DType = F32) -> np.ndarray:
    return (RNG.standard_normal(shape) * 3).astype(dtype.numpy)


def test_meaning():
    x, y = random(5, 37), random(37)
    sums, total = interpret(model(), [x, y])
    np.testing.assert_allclose(sums, np.logaddexp(x / (1 + abs(x)), y), rtol=1e-6)
    np.testing.assert_allclose(total, (sums / (1 + abs(sums))).sum(1), rtol=1e-5)


def test_text():
    graph = model()
    assert "{logaddexp(softsign(%x[d0, d1]), %y[d1])}" in str(graph)
    assert str(parse_graph(str(graph))) == str(graph)


def test_rules():
    x = Arg(0, F32)
    for body, message in (
        (Apply("softsign", (x, x), F32), "softsign has 2 arguments, not 1"),
        (Apply("divides", (x, x), DType.BOOL), "divides does not take f32"),
        (Apply("softsign", (x,), DType.BOOL), "softsign of f32 is typed bool"),
        (Apply("soft_sign", (x,), F32), "'soft_sign' is not a scalar op"),
    ):
        b = GraphBuilder()
        value = b.input("x", (3,), F32)
        b.generic([value], [maps(0)], (3,), body)
        with pytest.raises(VerificationError, match=message):
            b.build([value])


def test_data_and_its_revision(monkeypatch):
    graph = model()
    data = graph_to_bytes(graph, {})
    assert data is not None
    assert str(graph_from_bytes(data, {})) == str(graph)
    dispatches = fuse(graph).dispatches
    keys = [dispatch_key(d) for d in dispatches]
    assert [dispatch_key(dispatch_from_data(dispatch_to_data(d), "k")) for d in dispatches] == keys
    monkeypatch.setitem(find_scalar_op("softsign").__dict__, "revision", "2")
    assert not set(keys) & {dispatch_key(d) for d in dispatches}, "kernels of the old meaning would be used"
    with pytest.raises(ArtifactError, match="'softsign' of revision '1' is of revision '2' here"):
        graph_from_bytes(data, {})


def test_cost():
    b = GraphBuilder()
    x = b.input("x", (10,), F32)
    graph = b.build([b.generic([x], [maps(0)], (10,), op("logaddexp", Arg(0, F32), Const(1.0, F32)))])
    assert estimate_work(fuse(graph).dispatches[0]).operations == 260


@pytest.mark.parametrize("dtype", [F32, DType.F16], ids=str)
def test_kernels(device, dtype):
    tolerance = 1e-5 if dtype is F32 else 4e-3
    inputs = [random(5, 37, dtype=dtype), random(37, dtype=dtype)]
    check(model(dtype), inputs, device, rtol=tolerance, atol=tolerance)


def test_kernels_of_integers(device):
    x = RNG.integers(-4, 5, 64).astype(np.int32)
    y = RNG.integers(-50, 50, 64).astype(np.int32)
    check(integers(), [x, y], device)


# What cannot be declared ----------------------------------------------------------------------
_names = (f"refused_{i}" for i in itertools.count())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "softsign"}, "an op of this name is declared already"),
        ({"name": "exp"}, "an op of this name is declared already"),
        ({"name": "Soft"}, "the name has to be a word in lower case"),
        ({"name": "in3"}, "the name has to be a word"),
        ({"name": "f32"}, "the name has to be a word"),
        ({"name": "bitcast_f32"}, "the name has to be a word"),
        ({"arity": 0}, "an op of 0 operands cannot be"),
        ({"arity": 2}, "the reference on float does not take 2 arrays"),
        ({"reference": {Domain.INT: np.add}}, "the reference on int does not take 1 arrays"),
        ({"reference": {}}, "no domain"),
        ({"reference": {"float": np.exp}}, "'float' is not a domain"),
        ({"reference": {Domain.FLOAT: 3}}, "does not take 1 arrays"),
        ({"operations": 0}, "cannot cost 0 operations"),
        ({"infix": Infix("@", 3)}, "stands between two operands, not 1"),
        ({"arity": 2, "reference": {Domain.FLOAT: np.add}, "infix": Infix("+", 3)}, "another op is written"),
    ],
)
def test_wrong_declarations(change, message):
    known = len(scalar_ops())
    fields = {"name": next(_names), "arity": 1, "reference": {Domain.FLOAT: np.exp}, **change}
    with pytest.raises(CompileError, match=message):
        register_scalar_op(ScalarOp(**fields))
    assert len(scalar_ops()) == known


def test_wrong_lowerings():
    with pytest.raises(CompileError, match="'nothing' is not a scalar op; known: abs, acos"):
        register_scalar_lowering("nothing", _expand_softsign, Domain.FLOAT)
    with pytest.raises(CompileError, match="'softsign' has a lowering on float already"):
        register_scalar_lowering("softsign", _expand_softsign, Domain.FLOAT)
    with pytest.raises(CompileError, match="states the domains"):
        register_scalar_lowering("softsign", _expand_softsign)


def test_an_op_without_a_lowering():
    name = "declared_only"
    if find_scalar_op(name) is None:
        register_scalar_op(ScalarOp(name, 1, {Domain.FLOAT: np.abs}))
    b = GraphBuilder()
    x = b.input("x", (3,), F32)
    graph = b.build([b.generic([x], [maps(0)], (3,), op(name, Arg(0, F32)))])
    np.testing.assert_array_equal(interpret(graph, [np.array([-1, 0, 2], np.float32)])[0], [1, 0, 2])
    with pytest.raises(CodegenError, match="'declared_only' is not defined on f32; it is on: nothing"):
        check(graph, [random(3)], "cpu")
