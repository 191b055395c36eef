"""Tensors whose size depends on the content of others: bounds, sizes, later ops, against PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.frontends.torch_import import as_module
from torch import nn
from torch.utils import _pytree as pytree

import mansard
from mansard.api.results import result_builder
from mansard.errors import ImportModelError, ModelAssertionError, UnsupportedOpError
from mansard.frontends import import_model
from mansard.ir.interpreter.graph import interpret

torch.manual_seed(5)
X = torch.randn(5, 4)
ROWS = torch.randn(6, 8)
WHOLE = torch.randint(-2, 3, (4, 5))
NOTHING = torch.full((5, 4), -1.0)
WEIGHT = torch.randn(4, 8)


def compare(actual: Any, expected: Any) -> None:
    results, wanted = pytree.tree_leaves(actual), pytree.tree_leaves(expected)
    assert len(results) == len(wanted)
    for result, value in zip(map(torch.as_tensor, results), map(torch.as_tensor, wanted), strict=True):
        assert (result.dtype, result.shape) == (value.dtype, value.shape)
        torch.testing.assert_close(result, value.detach(), rtol=2e-5, atol=2e-5, equal_nan=True)


def check(function: Callable[..., Any], *inputs: torch.Tensor, others: tuple[Any, ...] = ()) -> Any:
    """Compare the graph, in the interpreter, with PyTorch, on these inputs and others of their shapes."""
    module = as_module(function)
    graph = import_model(module, inputs)
    assert graph.interface is not None
    build = result_builder(graph.interface.result)
    for given in (inputs, *others):
        compare(build(interpret(graph, [x.numpy() for x in given]), True), module(*given))
    return graph


def test_places_and_masks() -> None:
    def select(x: torch.Tensor) -> Any:
        mask = x > 0
        return (
            x.nonzero(),
            torch.where(mask),
            torch.argwhere(mask),
            x[mask],
            x[x.sum(-1) > 0] * 2,
            torch.masked_select(x, mask),
            mask.sum(),
        )

    graph = check(select, X, others=((NOTHING,), (X.abs(),)))
    assert graph.output_names[-1].endswith(".shape[0]")
    check(lambda x: x.nonzero(), torch.tensor(2.0), others=((torch.tensor(0.0),),))


def test_distinct_elements() -> None:
    def distinct(x: torch.Tensor) -> Any:
        rows = torch.unique(x % 2, dim=0, return_inverse=True, return_counts=True)
        runs = torch.unique_consecutive(x, return_inverse=True, return_counts=True)
        some = torch.unique(x[x > 0], return_counts=True)
        return torch.unique(x, return_inverse=True, return_counts=True), rows, runs, torch.unique(x > 0), some

    check(distinct, WHOLE, others=((WHOLE * 0,),))
    check(torch.unique, torch.tensor([1.0, torch.nan, 1.0, torch.inf, torch.nan]))


def test_repeats_and_numbers_as_sizes() -> None:
    def repeat(x: torch.Tensor, times: torch.Tensor) -> Any:
        rows = torch.repeat_interleave(x, times, dim=0)
        torch._check(rows.shape[0] <= 12)
        return rows * 2, histogram(times, x[:, 0]), count(x)

    def count(x: torch.Tensor) -> Any:
        n = (x > 0).sum().item()
        torch._check(n >= 0)
        torch._check(n <= x.numel())
        return torch.arange(n), x.flatten()[:n], torch.zeros(n, 3) + n

    def histogram(x: torch.Tensor, weight: torch.Tensor) -> Any:
        counts = torch.bincount(x), torch.bincount(x, weight, minlength=3)
        torch._check(counts[0].shape[0] <= 6)
        torch._check(counts[1].shape[0] <= 6)
        return counts

    times = torch.tensor([1, 0, 2, 1, 1])
    check(repeat, X, times, others=((X.flip(1), times * 2), (NOTHING, times * 0)))
    with pytest.raises(UnsupportedOpError, match=r"repeat_interleave.*no bound.*torch._check"):
        import_model(as_module(lambda x, n: torch.repeat_interleave(x, n, dim=0)), (X, times))


def test_a_stated_bound_is_checked_by_calls() -> None:
    def few(x: torch.Tensor) -> Any:
        y = x[x > 0]
        torch._check(y.shape[0] <= 3)
        return y

    model = mansard.compile(as_module(few), (torch.tensor([1.0, -1, 2, -3, 3]),), devices="cpu")
    with model:
        assert model(torch.tensor([0.0, -1, 2, -3, 3])).tolist() == [2.0, 3.0]
        with pytest.raises(ModelAssertionError, match="<= 3"):
            model(torch.ones(5))


def test_reductions_and_order() -> None:
    def reduce(x: torch.Tensor) -> Any:
        y = x[x > 0]
        return y.mean(), y.sum(), y.std(), y.norm(), (y > 1).any(), y.max(), y.norm(float("-inf"))

    def order(x: torch.Tensor) -> Any:
        y = x[x.sum(-1) > -100]
        rows = x[x[:, 0] > 0]
        return (
            reduce(x),
            y.sort(0),
            rows.sort(0, descending=True).values,
            rows.argmax(1),
            torch.softmax(rows, 0),
            rows.cumsum(0),
        )

    check(order, X, others=((X.flip(0),),))
    check(lambda x: x[x > 0].sort().values, torch.tensor([1.0, torch.nan, -2, torch.inf, 0.5]))
    with mansard.compile(as_module(lambda x: x[x > 0].topk(2).values), (X,), devices="cpu") as model:
        compare(model(X), X[X > 0].topk(2).values)
        with pytest.raises(ModelAssertionError, match=r"u0 >= 2|topk"):
            model(NOTHING)


def test_views_and_concatenation() -> None:
    def views(x: torch.Tensor) -> Any:
        y = x[x.sum(-1) > 0]
        parts = torch.cat([y[:, 0], torch.ones(2), y[:, 1]])
        return (
            y.reshape(-1),
            y.T.reshape(-1),
            y.reshape(-1, 2, 4),
            parts,
            y.flip(0),
            y[::2],
            y[1:],
            y[:-1],
            y[None],
            x[x > 0][-1],
        )

    check(views, ROWS, others=((-ROWS,), (ROWS.abs(),)))


def test_products_and_attention() -> None:
    layers = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4)).eval()

    def attend(x: torch.Tensor) -> Any:
        y = x[x.sum(-1) > -100]
        torch._check(y.shape[0] > 1)
        q = y.view(1, -1, 2, 4).transpose(1, 2)
        return nn.functional.scaled_dot_product_attention(q, q, q)

    def products(x: torch.Tensor) -> Any:
        y = x[x.sum(-1) > 0]
        return layers(y), y @ y.T, y.T @ y, attend(x)

    check(products, ROWS, others=((-ROWS,), (-ROWS.abs(),)))


def test_reads_and_writes_at_places() -> None:
    table = nn.Embedding(10, 6)

    def experts(x: torch.Tensor) -> Any:
        places = torch.where(x.sum(-1) > 0)[0]
        return torch.zeros(x.shape[0], 8).index_add(0, places, torch.relu(x[places] @ WEIGHT))

    def write(x: torch.Tensor) -> Any:
        rows = (x[:, 0] > 0).nonzero().squeeze(1)
        y, (i, j) = x.clone(), torch.where(x > 0.5)
        y[rows] = y[rows] * 10
        z = torch.zeros_like(x)
        z[i, j] = torch.arange(i.shape[0]).float()
        return y, z, table(rows)

    check(lambda x: (experts(x), write(x)), X, others=((NOTHING,), (X.abs(),)))
    model = mansard.compile(as_module(lambda x, i: x[x > 0][i]), (X, torch.tensor([0, -1])), devices="cpu")
    with model:
        assert model(X, torch.tensor([1, -1])).tolist() == X[X > 0][[1, -1]].tolist()
        with pytest.raises(ModelAssertionError, match="index out of range"):
            model(X, torch.tensor([0, 19]))


def suppressed(boxes: torch.Tensor, scores: torch.Tensor) -> Any:
    """Boxes of some score that no better one overlaps."""
    kept = scores > 0.3
    boxes, scores = boxes[kept], scores[kept]
    order = scores.argsort(descending=True)
    boxes, scores = boxes[order], scores[order]
    area = (boxes[:, 2:] - boxes[:, :2]).prod(1)
    low = torch.maximum(boxes[:, None, :2], boxes[None, :, :2])
    high = torch.minimum(boxes[:, None, 2:], boxes[None, :, 2:])
    common = (high - low).clamp(min=0).prod(2)
    overlap = common / (area[:, None] + area - common)
    alone = ~(torch.triu(overlap, 1) > 0.5).any(0)
    return {"boxes": boxes[alone], "scores": scores[alone]}


@pytest.mark.parametrize("device", ["cpu", pytest.param("vulkan", marks=pytest.mark.vulkan)])
def test_devices_return_as_many_as_there_are(device: str, tmp_path: Any) -> None:
    corners = torch.rand(9, 2) * 3
    boxes = torch.cat([corners, corners + 1 + torch.rand(9, 2)], 1)
    inputs = (boxes, torch.rand(9))
    model = mansard.compile(as_module(suppressed), inputs, devices=device)
    model.save(tmp_path / "boxes.mansard")
    with mansard.load(tmp_path / "boxes.mansard") as model:
        for scores in (inputs[1], torch.rand(9), torch.zeros(9)):
            compare(model(boxes, scores), suppressed(boxes, scores))
            result = model(boxes.numpy(), scores.numpy())
            assert result["scores"].shape == suppressed(boxes, scores)["scores"].shape


def test_the_bound_may_be_a_dynamic_dim() -> None:
    def select(x: torch.Tensor) -> Any:
        return x.nonzero(), torch.relu(x[x.sum(-1) > 0] @ WEIGHT)

    batch = torch.export.Dim("batch", min=2, max=64)
    options = {"dynamic_shapes": {"a": {0: batch}}}
    with mansard.compile(as_module(select), (X,), devices="cpu", **options) as model:
        for count in (5, 9, 2):
            x = torch.randn(count, 4)
            compare(model(x), select(x))


def test_what_has_no_form_is_named_at_once() -> None:
    def odd(x: torch.Tensor) -> Any:
        y = x[x > 0]
        return torch.kthvalue(y, 2).values, torch.bucketize(y, y)

    with pytest.raises(UnsupportedOpError, match=r"aten.kthvalue.*torch_import.py.*aten.bucketize"):
        import_model(as_module(odd), (X,))
    with pytest.raises(ImportModelError, match=r"torch._check"):
        import_model(as_module(lambda x: x * 2 if x[x > 0].sum() > 1 else x), (X,))
