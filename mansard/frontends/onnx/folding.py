"""Evaluation of nodes whose operands are known during the import, by ONNX's reference implementation."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

from mansard import dtypes
from mansard.errors import InputError
from mansard.frontends.emission.tensor import Content, Tensor
from mansard.frontends.onnx import symbolic
from mansard.frontends.onnx.node import Node

_MAX_ELEMENTS = 1 << 14
_RANDOM = frozenset(
    {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli", "Multinomial"}
)
_GENERATED = frozenset(
    {"Constant", "EyeLike", "Dropout", "If", "Loop", "Scan", "ConstantOfShape", "Expand", "Tile"}
)
"""Ops with rules that say it better, or whose results may be large."""


def fold(node: Node, opset: int) -> list[Content] | None:
    """The results of a node, or None where they are not known."""
    tensors = [entry for entry in node.inputs if entry is not None]
    if node.op in _RANDOM or not all(isinstance(t, Tensor) and t.content is not None for t in tensors):
        return None
    if not tensors or node.proto.domain not in ("", "ai.onnx"):
        return None
    if any(isinstance(t, Tensor) and t.symbolic for t in tensors):
        content = symbolic.evaluate(node)
        return None if content is None else [_plain(content)]
    if node.op in _GENERATED:
        return None
    return _run(node, opset)


def _plain(content: Content) -> Content:
    """Content without dims as numbers or bools."""
    content = np.asarray(content)
    if content.dtype != np.object_:
        return content
    flat = list(content.ravel())
    if all(isinstance(x, (bool, np.bool_)) for x in flat) and flat:
        return content.astype(np.bool_)
    return content.astype(np.int64) if all(isinstance(x, (int, np.integer)) for x in flat) else content


def _run(node: Node, opset: int) -> list[Content] | None:
    """By the reference implementation; None where it fails or what it says is no array."""
    proto = onnx.NodeProto()
    proto.CopyFrom(node.proto)
    names = [f"x{i}" if entry is not None else "" for i, entry in enumerate(node.inputs)]
    del proto.input[:]
    proto.input.extend(names)
    outputs = [o for o in node.outputs if o]
    feeds = {n: t.content for n, t in zip(names, node.inputs, strict=True) if isinstance(t, Tensor)}
    inputs = [
        onnx.helper.make_tensor_value_info(n, onnx.helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
        for n, x in feeds.items()
        if x is not None
    ]
    graph = onnx.helper.make_graph([proto], "g", inputs, [onnx.ValueInfoProto(name=o) for o in outputs])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)], ir_version=10)
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            results = ReferenceEvaluator(model).run(None, feeds)
    except Exception:  # the reference implementation raises whatever it likes: the node stays
        return None
    return results if all(_is_small(r) for r in results) else None


def _is_small(result: Any) -> bool:
    if not isinstance(result, (np.ndarray, np.generic)) or math.prod(np.shape(result)) > _MAX_ELEMENTS:
        return False
    try:
        dtypes.from_numpy(result.dtype)
    except InputError:
        return False
    return True


def array_of(tensor: Any) -> Content:
    """A tensor's data as an array."""
    return np.asarray(numpy_helper.to_array(tensor))
