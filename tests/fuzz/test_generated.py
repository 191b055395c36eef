"""A short run of every generator with a fixed seed; `make fuzz` goes on for as long as asked."""

from dataclasses import replace

import numpy as np
import pytest
from support.fuzzing.case import Case, Disagreement, Refusal, check, exact_for
from support.fuzzing.comparison import Tolerance, wrong
from support.fuzzing.properties import FRAMEWORK, PROPERTIES, run_round, sweep
from support.fuzzing.reproducer import read, source

from mansard.dtypes import DType
from mansard.errors import PlacementError
from mansard.ir import Constant, GraphBuilder, IndexMap
from mansard.ir.parser import parse_graph
from mansard.ir.scalar import Apply, Arg

SEED = 20261122
EXAMPLES = {"attention": 2, "program": 1, "onnx": 2, "jax": 1}
DEVICES = [FRAMEWORK, "cpu", pytest.param("vulkan", marks=pytest.mark.vulkan)]


@pytest.fixture(autouse=True)
def _silent_numpy():
    """Operands overflow and are no numbers on purpose."""
    with np.errstate(all="ignore"):
        yield


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", sorted(PROPERTIES.keys() - {"scalar"}))
@pytest.mark.filterwarnings("ignore")  # of the evaluators, about numbers that overflow
def test_a_round(name, device):
    run_round(name, SEED, (device,), EXAMPLES.get(name, 3))


def test_scalar_ops_of_the_interpreter_are_the_framework_s():
    assert [f.signature for f in sweep(SEED, (FRAMEWORK,)) if isinstance(f, Disagreement)] == []


@pytest.mark.parametrize("device", DEVICES[1:])
@pytest.mark.parametrize("dtype", [DType.F32, DType.I64, DType.BOOL], ids=str)
def test_scalar_ops_and_conversions(dtype, device):
    from support.fuzzing.scalars import conversion_case, scalar_case

    check(scalar_case(dtype, SEED), (device,))
    check(conversion_case(dtype, SEED), (device,))


# The generators themselves -----------------------------------------------------------------------
def sine(name="sin"):
    b = GraphBuilder("g")
    x = b.input("x", (3,), DType.F32)
    body = Apply(name, (Arg(0, DType.F32),), DType.F32)
    graph = b.build([b.generic([x], [IndexMap.identity(1)], (3,), body)])
    return Case("g", graph, ((np.array([np.nan, np.inf, 1.5], np.float32),),), exact_for(graph))


def test_a_reproducer_is_the_case_again(tmp_path):
    path = tmp_path / "case.py"
    path.write_text(source(Disagreement("s", "d", sine(), 0), name="graph", number=1, devices=("cpu",)))
    case, devices = read(path)
    assert devices == ("cpu",)
    assert str(case.graph) == str(sine().graph)
    np.testing.assert_array_equal(case.calls[0][0], sine().calls[0][0])
    assert case.tolerances == sine().tolerances


def test_a_wrong_result_is_a_disagreement_with_its_case(monkeypatch):
    monkeypatch.setattr("support.fuzzing.case.reference", lambda case, inputs: [np.zeros(3, np.float32)])
    with pytest.raises(Disagreement, match=r"g: cpu: v f32\n3 of 3 elements differ") as caught:
        check(sine(), ("cpu",))
    assert caught.value.case.graph is not None and caught.value.output == 0


def test_what_cannot_be_placed_is_a_refusal_and_what_breaks_a_failure(monkeypatch):
    def refuse(*_):
        raise PlacementError("no")

    monkeypatch.setattr("support.fuzzing.case.compile_graph", refuse)
    with pytest.raises(Refusal, match="cpu: no"):
        check(sine(), ("cpu",))
    monkeypatch.setattr("support.fuzzing.case.compile_graph", lambda *_: {}["k"])
    with pytest.raises(Disagreement, match="g: cpu compile: foreign KeyError"):
        check(sine(), ("cpu",))


@pytest.mark.parametrize(
    ("actual", "expected", "tolerance", "is_wrong"),
    [
        (np.nan, np.nan, Tolerance(), False),
        (0.0, np.nan, Tolerance(), True),
        (np.inf, np.nan, Tolerance(ulps=9), True),
        (np.inf, -np.inf, Tolerance(), True),
        (0.0, -0.0, Tolerance(), True),
        (0.0, -0.0, Tolerance(zero_sign=False), False),
        (1.0, np.nextafter(np.float32(1), np.float32(2)), Tolerance(), True),
        (1.0, np.nextafter(np.float32(1), np.float32(2)), Tolerance(ulps=1), False),
        (1.0, np.nextafter(np.float32(1), np.float32(2)), Tolerance(ulps=0.5), True),
        (np.inf, np.finfo(np.float32).max, Tolerance(ulps=1), False),
        (-np.inf, np.finfo(np.float32).max, Tolerance(ulps=1), True),
    ],
)
def test_what_counts_as_equal(actual, expected, tolerance, is_wrong):
    pair = np.array([actual], np.float32), np.array([expected], np.float32)
    assert wrong(pair[0], [pair[1]], tolerance)[0] == is_wrong


def test_products_of_depth_one_keep_no_value_of_another_tile():
    """Weights that one tile has read are not defined in the branch of the tile after it."""
    text = """graph random
  dim    t: 4 to 32 step 4
  input  %x: [t]x1xf32
  input  %bind: [t]xf32
  const  %w: 1x33xf32 "w"
  %v: [t]x33xf32 = generic (d0:t, d1:33 | d2:1) add {%x[d0, d2] * %w[d2, d1]}
  return %v
"""
    graph = parse_graph(text)
    (weight,) = graph.constants
    held = Constant.of(np.arange(33, dtype=np.float32).reshape(1, 33) - 7)
    call = (np.array([[3.0], [-4.0], [0.25], [-3.5]], np.float32), np.zeros(4, np.float32))
    case = replace(graph, constants={weight: held})
    check(Case("depth 1", case, (call,), exact_for(case)), ("cpu",))
