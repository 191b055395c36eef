"""Random chains of ONNX's ops, against the standard's reference evaluator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from support.fuzzing.case import Array
from support.fuzzing.chains import Chain, Framework, Step, grow, shape_of
from support.fuzzing.structured import Draw

OPSET = 18
Make = Callable[[np.random.Generator, Array], Step | None]
_UNARY = (
    "Abs", "Neg", "Relu", "LeakyRelu", "Elu", "Selu", "Sigmoid", "Tanh", "Erf", "Floor", "Ceil", "Round",
    "Sign", "Exp", "Softplus", "Softsign", "HardSigmoid", "HardSwish", "Celu", "ThresholdedRelu", "Mish",
    "Identity", "Sin", "Cos", "Atan", "Sinh", "Reciprocal",
)  # fmt: skip
_BINARY = (
    "Add", "Sub", "Mul", "Div", "Max", "Min", "PRelu", "Mean", "Sum",
)  # fmt: skip
_REDUCTIONS = (
    "ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceL1", "ReduceL2", "ReduceLogSumExp",
    "ReduceProd", "ReduceSumSquare",
)  # fmt: skip


def _f32(rng: np.random.Generator, *shape: int) -> Array:
    return np.asarray(rng.integers(-8, 9, shape) / 4, np.float32)


def _i64(*values: Any) -> Array:
    return np.array(values, np.int64)


def _axis(rng: np.random.Generator, x: Array) -> int:
    return int(rng.integers(-x.ndim, x.ndim))


def _reduced(name: str) -> Make:
    def make(rng: np.random.Generator, x: Array) -> Step:
        count = int(rng.integers(1, x.ndim + 1))
        axes = sorted(int(a) for a in rng.choice(x.ndim, count, replace=False))
        keep = ("keepdims", int(rng.integers(0, 2)))
        return Step(name, (_i64(*axes),), (keep,))

    return make


def _broadcast(name: str) -> Make:
    def make(rng: np.random.Generator, x: Array) -> Step:
        shape = [n if rng.integers(0, 2) else 1 for n in x.shape[int(rng.integers(0, x.ndim)) :]]
        other = _f32(rng, *shape)
        return Step(name, (np.where(other == 0, np.float32(0.5), other).astype(np.float32),))

    return make


def _slice(rng: np.random.Generator, x: Array) -> Step:
    axis = _axis(rng, x)
    size, step = x.shape[axis], int(rng.choice([1, 2, -1, -2]))
    begin, end = sorted(int(v) for v in rng.integers(-size - 2, size + 3, 2))
    ends = (begin, end) if step > 0 else (end, begin)
    return Step("Slice", (_i64(ends[0]), _i64(ends[1]), _i64(axis), _i64(step)))


def _pad(rng: np.random.Generator, x: Array) -> Step:
    mode = str(rng.choice(["constant", "reflect", "edge", "wrap"]))
    most = [n - 1 if mode == "reflect" else n for n in x.shape]
    pads = [int(rng.integers(0, min(m, 2) + 1)) for m in [*most, *most]]
    return Step("Pad", (_i64(*pads),), (("mode", mode),))


def _reshape(rng: np.random.Generator, x: Array) -> Step:
    sizes = list(x.shape)
    place = int(rng.integers(0, len(sizes)))
    choices = [
        [-1],
        [0, *sizes[1:]],
        [*sizes[:place], -1, *([1] if place + 1 == len(sizes) else sizes[place + 1 :])],
    ]
    return Step("Reshape", (_i64(*choices[int(rng.integers(0, 3))]),))


def _gather(rng: np.random.Generator, x: Array) -> Step:
    axis = _axis(rng, x)
    size = x.shape[axis]
    return Step("Gather", (np.asarray(rng.integers(-size, size, (2, 2)), np.int64),), (("axis", axis),))


def _along(name: str) -> Make:
    def make(rng: np.random.Generator, x: Array) -> Step:
        axis = _axis(rng, x)
        index = np.asarray(rng.integers(0, x.shape[axis], x.shape), np.int64)
        if name == "GatherElements":
            return Step(name, (index,), (("axis", axis),))
        index = np.argsort(rng.random(x.shape), axis).astype(np.int64)  # no place twice
        return Step(name, (index, _f32(rng, *x.shape)), (("axis", axis),))

    return make


def _window(name: str) -> Make:
    def make(rng: np.random.Generator, x: Array) -> Step | None:
        rank = x.ndim - 2
        if rank not in (1, 2):
            return None
        kernel = [int(rng.integers(1, min(n, 3) + 1)) for n in x.shape[2:]]
        steps = [int(rng.integers(1, 3)) for _ in range(rank)]
        pads = [int(rng.integers(0, (k - 1) // 2 + 1)) for k in [*kernel, *kernel]]
        shared = (("strides", steps), ("pads", pads))
        if name.startswith("Conv"):
            size = (4, x.shape[1]) if name == "Conv" else (x.shape[1], 4)
            return Step(name, (_f32(rng, *size, *kernel), _f32(rng, 4)), shared)
        ceil = (("ceil_mode", int(rng.integers(0, 2))),) if name == "MaxPool" else ()
        return Step(name, (), (("kernel_shape", kernel), *shared, *ceil))

    return make


def _normalised(name: str) -> Make:
    def make(rng: np.random.Generator, x: Array) -> Step | None:
        if name == "LayerNormalization":
            return Step(name, (_f32(rng, x.shape[-1]), _f32(rng, x.shape[-1])), (("axis", -1),))
        if x.ndim < 3:
            return None
        pair = (_f32(rng, x.shape[1]), _f32(rng, x.shape[1]))
        if name == "BatchNormalization":
            return Step(name, (*pair, _f32(rng, x.shape[1]), np.abs(_f32(rng, x.shape[1])) + np.float32(0.5)))
        return Step(name, pair)

    return make


def _resize(rng: np.random.Generator, x: Array) -> Step | None:
    if x.ndim != 4:
        return None
    scales = np.array([1, 1, *rng.choice([0.5, 1, 2, 3], 2)], np.float32)
    mode = str(rng.choice(["nearest", "linear"]))
    place = str(rng.choice(["half_pixel", "asymmetric", "align_corners"]))
    shared = (("mode", mode), ("coordinate_transformation_mode", place))
    return Step("Resize", (np.zeros(0, np.float32), scales), shared)


_STEPS: dict[str, Make] = {
    **{name: (lambda rng, x, name=name: Step(name)) for name in _UNARY},
    **{name: _broadcast(name) for name in _BINARY},
    **{name: _reduced(name) for name in _REDUCTIONS},
    **{name: _window(name) for name in ("Conv", "ConvTranspose", "MaxPool", "AveragePool", "LpPool")},
    **{
        name: _normalised(name)
        for name in ("LayerNormalization", "BatchNormalization", "InstanceNormalization")
    },
    **{name: _along(name) for name in ("GatherElements", "ScatterElements")},
    "Slice": _slice,
    "Pad": _pad,
    "Reshape": _reshape,
    "Gather": _gather,
    "Resize": _resize,
    "Transpose": lambda rng, x: Step("Transpose", (), (("perm", [int(p) for p in rng.permutation(x.ndim)]),)),
    "Unsqueeze": lambda rng, x: Step("Unsqueeze", (_i64(int(rng.integers(-x.ndim - 1, x.ndim + 1))),)),
    "Squeeze": lambda rng, x: Step("Squeeze"),
    "Flatten": lambda rng, x: Step("Flatten", (), (("axis", int(rng.integers(0, x.ndim + 1))),)),
    "Concat": lambda rng, x: Step("Concat", (_f32(rng, *x.shape),), (("axis", _axis(rng, x)),)),
    "Tile": lambda rng, x: Step("Tile", (_i64(*rng.integers(1, 3, x.ndim)),)),
    "Expand": lambda rng, x: Step("Expand", (_i64(2, *(1 for _ in x.shape)),)),
    "CumSum": lambda rng, x: Step(
        "CumSum", (np.array(_axis(rng, x), np.int32),), (("reverse", int(rng.integers(0, 2))),)
    ),
    "Softmax": lambda rng, x: Step("Softmax", (), (("axis", _axis(rng, x)),)),
    "LogSoftmax": lambda rng, x: Step("LogSoftmax", (), (("axis", _axis(rng, x)),)),
    "Clip": lambda rng, x: Step("Clip", (np.float32(-1), np.float32(1.5))),
    "MatMul": lambda rng, x: Step("MatMul", (_f32(rng, x.shape[-1], 3),)),
    "Trilu": lambda rng, x: Step(
        "Trilu", (np.array(int(rng.integers(-2, 3))),), (("upper", int(rng.integers(0, 2))),)
    ),
    "GlobalAveragePool": lambda rng, x: Step("GlobalAveragePool") if x.ndim > 2 else None,
    "LRN": lambda rng, x: Step("LRN", (), (("size", 3),)) if x.ndim == 4 else None,
    "DepthToSpace": lambda rng, x: Step("DepthToSpace", (), (("blocksize", 2),)) if x.ndim == 4 else None,
    "SpaceToDepth": lambda rng, x: Step("SpaceToDepth", (), (("blocksize", 2),)) if x.ndim == 4 else None,
}


def model_of(chain: Chain) -> Any:
    """The chain as a model with constants as initialisers."""
    nodes, weights = [], []
    for number, step in enumerate(chain.steps):
        names = [f"c{number}_{place}" for place in range(len(step.constants))]
        weights += [
            numpy_helper.from_array(np.asarray(c), n) for c, n in zip(step.constants, names, strict=True)
        ]
        inputs = [f"v{number}", *names]
        nodes.append(helper.make_node(step.op, inputs, [f"v{number + 1}"], **dict(step.attributes)))
    x = helper.make_tensor_value_info("v0", TensorProto.FLOAT, chain.x.shape)
    y = helper.make_tensor_value_info(f"v{len(chain.steps)}", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "chain", [x], [y], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8)


def evaluate(chain: Chain) -> Array:
    """The reference evaluator's result; raises for a model whose shapes the standard's inference refuses."""
    model = model_of(chain)
    onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True)
    with np.errstate(all="ignore"):
        return np.asarray(ReferenceEvaluator(model).run(None, {"v0": chain.x})[0])


FRAMEWORK = Framework(model_of, evaluate, lambda _chain: {})


@st.composite
def chains(draw: Draw) -> Chain:
    """Up to six steps on a tensor of up to four dims."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    names = list(_STEPS)

    def choose(value: Array) -> Step | None:
        return _STEPS[names[int(rng.integers(0, len(names)))]](rng, value) if value.ndim else None

    return grow("onnx", _f32(rng, *shape_of(rng)), 1 + int(rng.integers(0, 6)), choose, evaluate)
