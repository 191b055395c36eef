"""Indices out of range: an error that names the op and the index, on every device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import mansard
from mansard.errors import CompileError, IndexOutOfRangeError
from mansard.frontends import import_model
from mansard.ir.graph import Graph
from mansard.ir.interpreter.graph import interpret

X = torch.arange(15.0).reshape(5, 3)
DEVICES = [
    pytest.param(("cpu",), id="cpu"),
    pytest.param(("vulkan",), id="vulkan", marks=pytest.mark.vulkan),
    pytest.param(("cpu", "vulkan"), id="split", marks=pytest.mark.vulkan),
]


class Of(nn.Module):
    def __init__(self, function: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: torch.Tensor) -> torch.Tensor:
        return self.function(*args)


def ids(*numbers: int, shape: tuple[int, ...] = (2,)) -> torch.Tensor:
    return torch.tensor((numbers * 6)[: int(np.prod(shape))]).reshape(shape)


Case = tuple[Callable[[torch.Tensor], torch.Tensor], str, int, int, tuple[int, ...]]
OPS: dict[str, Case] = {
    # op, name in the error, lowest valid index, highest, shape of the indices
    "embedding": (lambda i: F.embedding(i, X), "embedding", 0, 4, (2,)),
    "embedding_bag": (lambda i: F.embedding_bag(i, X, mode="sum"), "embedding_bag", 0, 4, (1, 2)),
    "gather": (lambda i: torch.gather(X, 1, i), "gather", 0, 2, (5, 2)),
    "index_select": (lambda i: X.index_select(0, i), "index_select", 0, 4, (2,)),
    "index": (lambda i: X[i], "index", -5, 4, (2,)),
    "index of a column": (lambda i: X[:, i], "index", -3, 2, (2,)),
    "index of pairs": (lambda i: X[torch.zeros_like(i), i], "index", -3, 2, (2,)),
    "take": (X.take, "take", -15, 14, (2,)),
    "scatter": (lambda i: X.scatter(0, i, 2.0), "scatter", 0, 4, (2, 3)),
    "scatter of a source": (lambda i: X.scatter(0, i, X[:2]), "scatter", 0, 4, (2, 3)),
    "scatter_add": (lambda i: X.scatter_add(0, i, X[:2]), "scatter_add", 0, 4, (2, 3)),
    "scatter_reduce": (
        lambda i: X.scatter_reduce(0, i, X[:2], "amax"), "scatter_reduce", 0, 4, (2, 3)
    ),
    "index_put": (lambda i: X.index_put((i,), X[:2]), "index_put", -5, 4, (2,)),
    "index_add": (lambda i: X.index_add(0, i, X[:2]), "index_add", 0, 4, (2,)),
    "index_copy": (lambda i: X.index_copy(0, i, X[:2]), "index_copy", 0, 4, (2,)),
    "index_fill": (lambda i: X.index_fill(0, i, 2.0), "index_fill", -5, 4, (2,)),
    "one_hot": (lambda i: F.one_hot(i, 4), "one_hot", 0, 3, (2,)),
    "cross_entropy": (lambda i: F.cross_entropy(X[:2], i), "cross_entropy", 0, 2, (2,)),
    "nll_loss": (lambda i: F.nll_loss(X[:2].log_softmax(-1), i), "nll_loss", 0, 2, (2,)),
}  # fmt: skip


def compiled(module: nn.Module, inputs: Any, devices: tuple[str, ...], **options: Any) -> mansard.Model:
    missing = set(devices) - {i.id for i in mansard.devices() if i.supported}
    if missing:
        pytest.skip(f"no device {', '.join(missing)}")
    return mansard.compile(module.eval(), inputs, devices=devices, cache=False, **options)


class EveryOp(nn.Module):
    """Takes the indices of each op, and gives each op's result: exports cost more than ops."""

    def forward(self, *indices: torch.Tensor) -> list[torch.Tensor]:
        return [function(i) for (function, *_), i in zip(OPS.values(), indices, strict=True)]


@pytest.fixture(scope="module")
def every_op() -> Iterator[tuple[mansard.Model, Graph, tuple[torch.Tensor, ...]]]:
    """The ops compiled, their Graph, and indices that all are in range."""
    valid = tuple(ids(0, 1, shape=shape) for *_, shape in OPS.values())
    graph = import_model(EveryOp().eval(), valid, cache=False)
    with mansard.compile(EveryOp().eval(), valid, devices="cpu", cache=False) as model:
        yield model, graph, valid


@pytest.mark.parametrize("name", OPS)
def test_every_op_refuses_what_the_framework_refuses(every_op: Any, name: str) -> None:
    function, op, low, high, shape = OPS[name]
    model, graph, valid = every_op
    place = list(OPS).index(name)

    def with_indices(indices: torch.Tensor) -> list[torch.Tensor]:
        return [*valid[:place], indices, *valid[place + 1 :]]

    for index in {low, low + 1, high}:
        indices = ids(index, 0, shape=shape)
        torch.testing.assert_close(model(*with_indices(indices))[place], function(indices))
    for index in (low - 1, high + 1, -(2**62), 2**62):
        indices = ids(0, index, shape=shape)
        if not (op in ("cross_entropy", "nll_loss") and index == -100):
            with pytest.raises((IndexError, RuntimeError)):
                function(indices)
        for run in (model, lambda *inputs: interpret(graph, [i.numpy() for i in inputs])):
            with pytest.raises(IndexOutOfRangeError, match=f"{op}.*valid are {low} to {high}") as caught:
                run(*with_indices(indices))
            assert caught.value.index == index


class Lookup(nn.Module):
    """An embedding at indices that the caller gives, and one at indices that a device computes."""

    def __init__(self, computed: bool) -> None:
        super().__init__()
        self.words = nn.Embedding(50, 8)
        self.computed = computed

    def forward(self, i: torch.Tensor) -> torch.Tensor:
        return self.words(i * 2 + 1 if self.computed else i)


@pytest.mark.parametrize("devices", DEVICES)
@pytest.mark.parametrize("shape", [(4,), (64, 128)])  # read by the host, and reduced on the device
@pytest.mark.parametrize("computed", [False, True])
def test_given_and_computed_indices_are_checked(
    devices: tuple[str, ...], shape: tuple[int, ...], computed: bool
) -> None:
    module = Lookup(computed).eval()
    good = torch.zeros(shape, dtype=torch.int64)
    with compiled(module, (good,), devices) as model:
        torch.testing.assert_close(model(good), module(good).detach())
        for index in (60, -3, 2**61 - 1):
            bad = good.clone().flatten()
            bad[3] = index
            with pytest.raises(IndexOutOfRangeError, match="embedding at words") as caught:
                model(bad.reshape(shape))
            assert caught.value.index == (2 * index + 1 if computed else index)
        torch.testing.assert_close(model(good), module(good).detach())
        assert model.stats.contexts == 1


def test_narrow_indices_are_read_as_they_are() -> None:
    module = Lookup(False).eval()
    with compiled(module, (torch.zeros(4, dtype=torch.int32),), ("cpu",)) as model:
        (check,) = model.plan.asserts
        assert check.value == model.plan.inputs[0].value
        model(torch.tensor([0, 49, 7, 3], dtype=torch.int32))
        with pytest.raises(IndexOutOfRangeError, match="index -1 "):
            model(torch.tensor([0, 49, -1, 3], dtype=torch.int32))


def test_the_option_leaves_the_checks_out() -> None:
    module = Lookup(False).eval()
    good = torch.zeros(4, dtype=torch.int64)
    with compiled(module, (good,), ("cpu",), check_indices=False) as model:
        assert not model.plan.asserts
        model(good + 99)  # clamped: some row


IN_RANGE: dict[str, tuple[Callable[..., torch.Tensor], tuple[torch.Tensor, ...]]] = {
    "positions": (lambda x: X[torch.arange(3)] + x, (torch.ones(3),)),
    "argmax": (lambda x: X[x.argmax(-1)], (torch.ones(4, 5),)),
    "order": (lambda x: X[x.argsort(-1)[:2]], (torch.ones(5),)),
    "clamped": (lambda i: X[i.clamp(0, 4)], (torch.tensor([2, 9]),)),
    "remainder": (lambda i: torch.take_along_dim(X, i, 0), (torch.tensor([[2, 9, 1]]),)),
    "masked": (lambda i: F.embedding((i > 3).long(), X), (torch.tensor([2, 9]),)),
}


@pytest.mark.parametrize("name", IN_RANGE)
def test_indices_that_are_surely_in_range_are_not_checked(name: str) -> None:
    function, inputs = IN_RANGE[name]
    with compiled(Of(function), inputs, ("cpu",)) as model:
        assert not model.plan.asserts
        torch.testing.assert_close(model(*inputs), function(*inputs))


def test_positions_of_a_dynamic_length_are_not_checked_in_a_table_that_is_long_enough() -> None:
    length = torch.export.Dim("length", min=1, max=64)

    class Positions(nn.Module):
        def __init__(self, rows: int) -> None:
            super().__init__()
            self.table = nn.Embedding(rows, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.table(torch.arange(x.shape[0]))

    x = torch.ones(8, 4)
    for rows, checks in ((64, 0), (32, 1)):
        with compiled(Positions(rows), (x,), ("cpu",), dynamic_shapes={"x": {0: length}}) as model:
            assert len(model.plan.asserts) == checks
            model(torch.ones(32, 4))
            if checks:
                with pytest.raises(IndexOutOfRangeError, match="index 39 "):
                    model(torch.ones(40, 4))


def test_an_index_into_a_dim_that_varies() -> None:
    class Rows(nn.Module):
        def forward(self, x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
            return x[i]

    dynamic = {"x": {0: torch.export.Dim("rows", min=1, max=64)}}
    x = np.ones((8, 4), np.float32)
    with compiled(Rows(), (torch.ones(6, 4), torch.tensor([1])), ("cpu",), dynamic_shapes=dynamic) as model:
        model(x, np.array([7])), model(x, np.array([-8]))
        with pytest.raises(IndexOutOfRangeError, match="index 8 is out of range; valid are -8 to 7"):
            model(x, np.array([8]))
        with pytest.raises(IndexOutOfRangeError, match="valid are -6 to 5"):
            model(x[:6], np.array([7]))


def test_constant_indices_out_of_range_are_an_error_of_the_compiler() -> None:
    class Fixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("places", torch.tensor([0, 7]))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x[self.places]

    with pytest.raises(CompileError, match="index 7 is out of range; valid are -7 to 6"):
        compiled(Fixed(), (torch.ones(7, 2),), ("cpu",))


@pytest.mark.parametrize("devices", DEVICES[:2])
def test_an_index_of_the_caller_leaves_states_alone(devices: tuple[str, ...]) -> None:
    class Cache(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("keys", torch.zeros(2, 6, 4))

        def forward(self, row: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
            self.keys.index_copy_(1, position, row)
            return self.keys.sum(1)

    row = torch.ones(2, 1, 4)
    with compiled(Cache(), (row, torch.tensor([0])), devices) as model:
        before = model(row, torch.tensor([1]))
        with pytest.raises(IndexOutOfRangeError, match=r"index_copy.*index 6 "):
            model(row, torch.tensor([6]))
        torch.testing.assert_close(model(row, torch.tensor([1])), before)
