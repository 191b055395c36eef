"""Attention stays one op, with grouped heads, masks and the causal flag recovered."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.frontends.torch_import import Apply, as_module, check, import_and_check

from mansard.frontends import import_model
from mansard.ir.graph import Graph
from mansard.ir.ops import Attention

torch.manual_seed(0)
Q, K, G = torch.randn(2, 4, 5, 8), torch.randn(2, 4, 7, 8), torch.randn(2, 2, 7, 8)
KEEP = torch.cat([torch.ones(2, 1, 5, 1) > 0, torch.rand(2, 1, 5, 6) > 0.5], -1)
sdpa = F.scaled_dot_product_attention


def only_attention(graph: Graph) -> Attention:
    """The graph's attention, which must be its only op apart from views."""
    assert {op.name for op in graph.ops} <= {"attention", "reshape"}
    (op,) = (op for op in graph.ops if isinstance(op, Attention))
    return op


CASES: dict[str, tuple[Any, tuple[torch.Tensor, ...], dict[str, Any]]] = {
    "plain": (lambda q, k: sdpa(q, k, k), (Q, K), {"heads": 4}),
    "scale": (lambda q, k: sdpa(q, k, k, scale=0.3), (Q, K), {"scale": 0.3}),
    "causal": (lambda q: sdpa(q, q, q, is_causal=True), (Q,), {"causal": True}),
    "causal, longer keys": (lambda q, k: sdpa(q, k, k, is_causal=True), (Q, K), {"causal": True}),
    "bool mask": (lambda q, k, m: sdpa(q, k, k, attn_mask=m), (Q, K, KEEP), {"mask": (2, 1, 5, 7)}),
    "float mask": (
        lambda q, k, m: sdpa(q, k, k, attn_mask=m), (Q, K, torch.randn(5, 7)), {"mask": (1, 1, 5, 7)}),
    "mask of every head": (
        lambda q, k, m: sdpa(q, k, k, attn_mask=m), (Q, K, torch.randn(2, 4, 5, 7)), {"mask": (2, 4, 5, 7)}),
    "mask of keys": (
        lambda q, k, m: sdpa(q, k, k, attn_mask=m), (Q, K, KEEP[:, :, :1]), {"mask": (2, 1, 1, 7)}),
    "grouped": (lambda q, k: sdpa(q, k, k, enable_gqa=True), (Q, G), {"heads": 2}),
    "grouped by repeat_interleave": (
        lambda q, k: sdpa(q, k.repeat_interleave(2, 1), k.repeat_interleave(2, 1)), (Q, G), {"heads": 2}),
    "grouped by expand": (
           lambda q, k: sdpa(q, *(k[:, :, None].expand(2, 2, 2, 7, 8).reshape(2, 4, 7, 8),) * 2), (Q, G),
           {"heads": 2}),
    "repeated as a whole is not grouped": (
        lambda q, k: sdpa(q, k.repeat(1, 2, 1, 1), k.repeat(1, 2, 1, 1)), (Q, G), {"anything": True}),
    "three dims": (lambda q, k: sdpa(q, k, k), (Q[0], K[0]), {"heads": 4}),
    "three dims with a mask": (lambda q, k, m: sdpa(q, k, k, attn_mask=m), (Q[0], K[0], KEEP[0, 0]), {}),
    "two dims": (lambda q, k: sdpa(q, k, k), (Q[0, 0], K[0, 0]), {}),
    "half": (lambda q, k: sdpa(q, k, k), (Q.half(), K.half()), {}),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_attention(name: str) -> None:
    function, inputs, expected = CASES[name]
    graph = import_and_check(function, *inputs)
    if "anything" in expected:
        return
    op = only_attention(graph)
    assert op.causal == expected.get("causal", False)
    if "scale" in expected:
        assert op.scale == expected["scale"]
    if "heads" in expected:
        assert op.inputs[1].type.shape[1] == op.inputs[2].type.shape[1] == expected["heads"]
    if "mask" in expected:
        assert op.inputs[3].type.shape == expected["mask"]
    else:
        assert len(op.inputs) == (4 if name == "three dims with a mask" else 3)


def test_a_mask_that_is_almost_causal_stays_a_mask() -> None:
    graph = import_and_check(lambda q, m: sdpa(q, q, q, attn_mask=m), Q, torch.ones(5, 5).tril(1) > 0)
    assert not only_attention(graph).causal


@pytest.mark.parametrize("grouped", [False, True])
def test_dynamic_lengths(grouped: bool) -> None:
    module = as_module(Apply(lambda q, k: sdpa(q, k, k, enable_gqa=grouped)))
    rows, keys = torch.export.Dim("rows", min=1, max=32), torch.export.Dim("keys", min=1, max=32)
    key = G if grouped else K
    graph = import_model(module, (Q, key), dynamic_shapes=({2: rows}, {2: keys}))
    op = only_attention(graph)
    assert op.inputs[1].type.shape[1] == (2 if grouped else 4)
    for n, s in ((5, 7), (1, 7), (1, 1), (9, 3)):
        check(graph, module, (torch.randn(2, 4, n, 8), torch.randn(2, key.shape[1], s, 8)))
