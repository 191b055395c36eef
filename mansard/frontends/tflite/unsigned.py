"""Activations between layers as unsigned bytes.

Dot-product instructions of x86 multiply unsigned bytes by signed ones. int8 activations that no one outside
sees are stored with 128 added, and so are their zero points: the numbers they stand for are the same.
"""

from __future__ import annotations

from dataclasses import replace

from mansard.frontends.tflite.model import Operator, Subgraph, TensorInfo

_COMPUTING = frozenset(
    """ADD AVERAGE_POOL_2D BATCH_MATMUL CONV_2D DEPTHWISE_CONV_2D DEQUANTIZE ELU FULLY_CONNECTED GELU
    HARD_SWISH L2_NORMALIZATION LEAKY_RELU LOGISTIC MEAN MUL PRELU QUANTIZE RELU RELU6 RELU_N1_TO_1
    RESIZE_BILINEAR RSQRT SOFTMAX SQUARED_DIFFERENCE SUB SUM TANH TRANSPOSE_CONV""".split()  # noqa: SIM905
)
_MOVING = frozenset(
    """CONCATENATION EXPAND_DIMS MAX_POOL_2D PACK PAD RESHAPE RESIZE_NEAREST_NEIGHBOR SLICE SPLIT SQUEEZE
    STRIDED_SLICE TRANSPOSE""".split()  # noqa: SIM905
)
_FACTORS = frozenset({"BATCH_MATMUL", "FULLY_CONNECTED"})
"""Products whose second operand stays signed."""


def with_unsigned(subgraph: Subgraph) -> Subgraph:
    """The subgraph with int8 activations as uint8 where rules read and store each at its own type."""
    kept = {*subgraph.inputs, *subgraph.outputs}
    computed: set[int] = set()
    moves: list[Operator] = []
    for operator in subgraph.operators:
        if operator.custom or operator.op not in _COMPUTING | _MOVING:
            kept.update(operator.inputs, operator.outputs)
            continue
        computed.update(operator.outputs)
        if operator.op in _FACTORS:
            kept.update(operator.inputs[1:2])
        if operator.op in _MOVING:
            moves.append(operator)
    eligible = {i for i in computed - kept if _is_signed(subgraph.tensors[i])}
    _together(subgraph, moves, eligible)
    tensors = tuple(_unsigned(t) if i in eligible else t for i, t in enumerate(subgraph.tensors))
    return replace(subgraph, tensors=tensors)


def _is_signed(tensor: TensorInfo) -> bool:
    q = tensor.quantisation
    stored = tensor.kind == "INT8" and q is not None and q.per_tensor
    return stored and not tensor.variable and tensor.constant is None


def _together(subgraph: Subgraph, moves: list[Operator], eligible: set[int]) -> None:
    """Take back what an op that moves elements would have to convert."""
    before = -1
    while before != len(eligible):
        before = len(eligible)
        for operator in moves:
            sides = {*operator.inputs, *operator.outputs}
            signed = {i for i in sides if i >= 0 and _is_signed(subgraph.tensors[i])}
            if not signed <= eligible:
                eligible -= signed


def _unsigned(tensor: TensorInfo) -> TensorInfo:
    q = tensor.quantisation
    assert q is not None
    return replace(tensor, kind="UINT8", quantisation=replace(q, zero=q.zero + 128, kind="UINT8"))
