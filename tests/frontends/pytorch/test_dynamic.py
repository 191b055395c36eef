"""Dynamic sizes: one import, checked at several sizes, 1 among them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.frontends.torch_import import SideBySide, as_module, check
from torch import nn
from torch.export import Dim

from mansard.dims import Dim as OurDim
from mansard.errors import ImportModelError, InputError, ShapeContractError, UnsupportedOpError
from mansard.frontends import import_model
from mansard.frontends.pytorch.decompositions import table as decompositions
from mansard.ir.interpreter.graph import interpret

torch.manual_seed(0)
randn = torch.randn
S, T, B, K = (
    Dim("seq", min=1, max=64),
    Dim("t", min=1, max=99),
    Dim("batch", min=1, max=8),
    Dim("k", min=1, max=8),
)
PLANE = {2: Dim("l", min=2, max=77), 3: Dim("m", min=5, max=99)}
GROUP_NORM = nn.GroupNorm(4, 8)
for parameter in GROUP_NORM.parameters():
    nn.init.normal_(parameter)
Inputs = Callable[[int], tuple[torch.Tensor, ...]]
Case = tuple[Any, Inputs, tuple[Any, ...]]


def vectors(n: int) -> tuple[torch.Tensor, ...]:
    return (randn(2, n, 4),)


# Cases over the same dims are imported side by side: an export costs more than most ops.
SEQUENCES: dict[str, Case] = {
    "linear": (nn.Linear(4, 3), vectors, ({1: S},)),
    "layer_norm": (nn.LayerNorm(4), vectors, ({1: S},)),
    "softmax": (lambda a: a.softmax(1), vectors, ({1: S},)),
    "shared dim": (lambda a, b: a + b, lambda n: (randn(n, 4), randn(n, 1)), ({0: S}, {0: S})),
    "reshape": (lambda a: a.reshape(2, -1), vectors, ({1: S},)),
    "heads": (
        lambda a: a.view(a.shape[0], a.shape[1], 2, 4).transpose(1, 2), lambda n: (randn(2, n, 8),),
        ({1: S},)),
    "arange": (lambda a: a + torch.arange(a.shape[1])[:, None], vectors, ({1: S},)),
    "causal mask": (lambda a: (a @ a.mT).tril(), vectors, ({1: S},)),
    "cumsum": (lambda a: (a.cumsum(1), a.flip(1), a.repeat(1, 2, 1)), vectors, ({1: S},)),
    "group_norm": (nn.GroupNorm(2, 4), lambda n: (randn(2, 4, n),), ({2: S},)),
    "embedding": (nn.Embedding(10, 4), lambda n: (torch.randint(0, 10, (2, n)),), ({1: S},)),
    "adaptive pool": (nn.AdaptiveAvgPool2d(1), lambda n: (randn(1, 2, n, 5),), ({2: S},)),
    "a size as an output": (lambda a: (a.sum(), a.shape[1]), vectors, ({1: S},)),
    "sort": (lambda a: a.sort(1), vectors, ({1: S},)),
    "gather": (
        lambda a, i: a.gather(1, i), lambda n: (randn(2, 9), torch.randint(0, 9, (2, n))),
        (None, {1: S})),
    "scatter": (
        lambda a, i: a.scatter(1, i, 2.0), lambda n: (randn(2, 9), torch.randint(0, 9, (2, n))),
        (None, {1: S})),
}  # fmt: skip
DERIVED: dict[str, Case] = {
    "merged batch": (
        lambda a: a[:, None].expand(-1, 3, -1, -1).reshape(a.shape[0] * 3, -1), lambda n: (randn(n, 2, 4),),
        ({0: B},)),
    "multiples": (
        nn.Sequential(nn.Conv2d(3, 4, 3, stride=2, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        lambda n: (randn(1, 3, 8 * n, 8 * n),), ({2: 8 * K, 3: 8 * K},)),
    "group norm": (
        GROUP_NORM, lambda n: (randn(n, 8, n + 1, 3),), ({0: B, 2: B + 1},)),
    "nearest by a factor": (
        lambda a: (F.interpolate(a, scale_factor=2), F.interpolate(a, scale_factor=3, mode="nearest-exact")),
        lambda n: (randn(n, 2, 2 * n, 6),), ({0: B, 2: 2 * B},)),
    "nearest to a size": (
        lambda a, b: F.interpolate(a, size=b.shape[2:]),
        lambda n: (randn(1, 2, n, 3), randn(1, 2, 3 * n, 7)), ({2: K}, {2: 3 * K})),
    "linear by a factor": (
        lambda a: (F.interpolate(a, scale_factor=2, mode="bilinear"),
                   F.interpolate(a, scale_factor=2, mode="bilinear", align_corners=True)),
        lambda n: (randn(n, 2, n + 1, 6),), ({0: B, 2: B + 1},)),
    "reflected border": (
        lambda a: F.pad(a, (1, 2), mode="reflect"), lambda n: (randn(2, 3, n + 2),), ({2: K + 2},)),
    "deviations": (
        lambda a: (a.std(), a.std((1, 2)), a.var(2, correction=0)),
        lambda n: (randn(n, 3, n + 1),), ({0: K, 2: K + 1},)),
    "halves": (
        lambda a: torch.cat([a[:, a.shape[1] // 2 :], a[:, : a.shape[1] // 2]], 1) * 2,
        lambda n: (randn(2, 2 * n, 4),), ({1: 2 * K},)),
    "batch_norm": (nn.BatchNorm2d(3), lambda n: (randn(n, 3, 4, 4),), ({0: B},)),
    "windows of four": (
        lambda a: a.view(2, a.shape[1] // 4, 4, 3).sum(2), lambda n: (randn(2, 4 * n, 3),), ({1: 4 * K},)),
}  # fmt: skip
CASES: dict[str, Case] = {
    "encoder layer": (
        nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), lambda n: (randn(2, n, 8),), ({1: S},)),
    "cubic": (
        lambda a: F.interpolate(a, scale_factor=2, mode="bicubic"),
        lambda n: (randn(1, 2, n + 1, 3),), ({2: K + 1},)),
    "linear to a size": (
        lambda a, b: F.interpolate(a, size=b.shape[2:], mode="bilinear"),
        lambda n: (randn(1, 2, n, 3), randn(1, 2, 3 * n, 7)), ({2: K}, {2: 3 * K})),
    "strided convolution": (
        nn.Conv1d(3, 4, 3, stride=2, padding=1),
        lambda n: (randn(1, 3, n + 5),),
        ({2: Dim("l", min=5, max=100)},)),
    "residual convolution": (
        lambda a: a + F.conv1d(a, torch.ones(3, 3, 3), padding=1),
        lambda n: (randn(1, 3, n + 2),), ({2: S},)),
    "slices": (
        lambda a: (a[:, 1:], a[:, :-1], a[:, -1:], a[:, ::2]), lambda n: (randn(2, n + 2, 4),),
        ({1: Dim("l", min=3, max=90)},)),
    "cat": (
        lambda a, b: torch.cat([a, b], 1), lambda n: (randn(2, n, 4), randn(2, n + 3, 4)), ({1: S}, {1: T})),
    "reductions": (
        lambda a: (a.mean(1), a.var(1), a.argmax(1), a.amax(1)), lambda n: (randn(2, n + 1, 4),),
        ({1: Dim("l", min=2, max=77)},)),
    "two dims": (lambda a, b: a @ b, lambda n: (randn(n, 4), randn(4, n + 1)), ({0: S}, {1: T})),
    "interpolate": (
        lambda a: F.interpolate(a, scale_factor=2, mode="bilinear"), lambda n: (randn(1, 2, n + 1, 5),),
        ({2: Dim("l", min=2, max=77)},)),
    "adaptive pools": (
        lambda a: tuple(F.adaptive_avg_pool1d(a, n) for n in (2, 3, 7)), lambda n: (randn(1, 2, n + 1),),
        ({2: Dim("l", min=2, max=77)},)),
    "adaptive pools of planes": (
        lambda a: tuple(F.adaptive_avg_pool2d(a, size) for size in (2, (3, 1), (None, 2))),
        lambda n: (randn(1, 2, n + 1, 2 * n + 3),), (PLANE,)),
    "adaptive pools of volumes": (
        lambda a: F.adaptive_avg_pool3d(a, (2, 3, 2)),
        lambda n: (randn(1, 2, n + 1, 5, 2 * n + 3),), ({2: PLANE[2], 4: PLANE[3]},)),
    "adaptive maxima with positions": (
        lambda a: (
            F.adaptive_max_pool1d(a[0], 3, return_indices=True),
            F.adaptive_max_pool2d(a, (2, 3), return_indices=True)),
        lambda n: (randn(1, 2, n + 1, 2 * n + 3),), (PLANE,)),
    "area of other sizes": (
        lambda a: (F.interpolate(a, scale_factor=2, mode="area"), F.interpolate(a, size=(3, 4), mode="area")),
        lambda n: (randn(1, 2, n + 1, 5),), ({2: Dim("l", min=2, max=77)},)),
    "topk": (lambda a: a.topk(2, 1), lambda n: (randn(2, n + 2, 4),), ({1: Dim("l", min=3, max=77)},)),
    "lstm over a batch": (nn.LSTM(4, 6, batch_first=True), lambda n: (randn(n, 3, 4),), ({0: B},)),
}  # fmt: skip
REPEATED = {
    "interpolate",  # "linear by a factor"
    "cubic",  # "linear by a factor", and resizing to static sizes in test_ops
    "encoder layer",  # layers and attention of any length apart, and tests/models
    "linear to a size",  # "linear by a factor" and "nearest to a size"
    "adaptive pools",  # the pools of planes and volumes
    "adaptive maxima with positions",  # the positions of the last NaN
    "lstm over a batch",  # test_recurrent
}
"""Left to the slow tests; beside each what has the same path."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name in REPEATED else []) for name in CASES]
)
def test_dynamic(name: str) -> None:
    function, inputs, shapes = CASES[name]
    module = as_module(function)
    graph = import_model(module, inputs(6), dynamic_shapes=shapes)
    assert graph.dims().keys() == roots(shapes)
    for n in (6, 3, 1, 7):
        check(graph, module, inputs(n))


def roots(shapes: tuple[Any, ...]) -> set[str]:
    return {getattr(d, "root", d).__name__ for spec in shapes if spec for d in spec.values()}


@pytest.mark.parametrize("cases", [SEQUENCES, DERIVED], ids=["sequences", "derived"])
def test_dynamic_side_by_side(cases: dict[str, Case]) -> None:
    modules = [as_module(function) for function, _, _ in cases.values()]
    module = SideBySide(modules, [len(inputs(6)) for _, inputs, _ in cases.values()])
    shapes = tuple(spec for _, _, specs in cases.values() for spec in specs)

    def every(n: int) -> list[torch.Tensor]:
        return [x for _, inputs, _ in cases.values() for x in inputs(n)]

    graph = import_model(module, every(6), dynamic_shapes=(shapes,))
    assert graph.dims().keys() == roots(shapes)
    for n in (6, 3, 1, 7):
        check(graph, module, every(n))


def test_ranges_and_divisors_are_the_users() -> None:
    module = as_module(lambda a: a * 2)
    graph = import_model(module, (randn(2, 32),), dynamic_shapes=({1: 16 * K},))
    (x,) = graph.inputs
    assert graph.dims() == {"k": OurDim("k", 1, 8)}
    assert str(x.type.shape[1]) == "16*k"
    check(graph, module, (randn(2, 128),))
    for n in (24, 144):
        with pytest.raises(InputError):
            check(graph, as_module(lambda a: a * 2), (randn(2, n),))


def test_windows_of_adaptive_pools_do_not_mix() -> None:
    infinite = torch.zeros(1, 1, 8)
    infinite[0, 0, 1], infinite[0, 0, 7] = torch.inf, torch.nan
    module = as_module(lambda a: (F.adaptive_avg_pool1d(a, 3), F.adaptive_max_pool1d(a, 3)))
    graph = import_model(module, (randn(1, 1, 6),), dynamic_shapes=({2: S},))
    for values in (infinite, infinite.flip(2), -infinite):
        check(graph, module, (values,))


@pytest.mark.parametrize("shapes", [None, (PLANE,)])
def test_positions_of_adaptive_maxima_are_those_of_the_last_nan(shapes: Any) -> None:
    """NaN are the elements 4, 13, 20, 24 and 25 of a plane of 5 by 7; of equal maxima it is the first."""
    plane = torch.zeros(35)
    plane[[4, 13, 20, 24, 25]] = torch.nan
    x = plane.view(1, 1, 5, 7)
    module = as_module(
        lambda a: (
            F.adaptive_max_pool1d(a[0], 3, return_indices=True),
            F.adaptive_max_pool2d(a, (2, 3), return_indices=True),
            F.adaptive_max_pool3d(a, (1, 2, 2), return_indices=True),
        )
    )
    graph = import_model(module, (x,), dynamic_shapes=shapes)
    check(graph, module, (x,))
    for n in (6, 1, 7) if shapes else ():
        check(graph, module, (randn(1, 1, n + 1, 2 * n + 3),))


def test_halves_are_averaged_in_f32() -> None:
    module = as_module(lambda a: F.adaptive_avg_pool1d(a, 2))
    graph = import_model(module, (randn(1, 1, 6).half(),), dynamic_shapes=({2: Dim("l", min=2, max=9999)},))
    check(graph, module, (torch.full((1, 1, 5000), 300.0).half(),))


def test_decompositions_that_hold_for_some_sizes_only_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decompositions, "adaptive_pooling_table", lambda table: {})
    module = as_module(lambda a: F.adaptive_avg_pool2d(a, 2))
    wide = Dim("wide", min=2, max=64)
    with pytest.raises(
        UnsupportedOpError, match=r"right while .*a\.shape\[2\].* which a\.shape\[2\] = \d+ violates"
    ) as e:
        import_model(module, (randn(1, 4, 16, 24),), dynamic_shapes=({2: wide},))
    assert e.value.op == "aten.adaptive_avg_pool2d"
    assert e.value.location
    import_model(module, (randn(1, 4, 16, 24),))  # of one size it is right


def test_dims_without_a_name_are_named_by_their_input() -> None:
    module = as_module(lambda a, b: a + b)
    dynamic = {0: Dim.AUTO}
    graph = import_model(module, (randn(5, 4), randn(5, 1)), dynamic_shapes=(dynamic, dynamic))
    assert list(graph.dims()) == ["a_dim0"]
    check(graph, module, (randn(9, 4), randn(9, 1)))


def test_dims_of_nested_inputs() -> None:
    class Nested(nn.Module):
        def forward(self, batch: dict[str, torch.Tensor], pair: tuple[torch.Tensor, torch.Tensor]) -> Any:
            return batch["x"] + pair[0], pair[1] * 2

    x, y = randn(3, 2), randn(5, 2)
    shapes = {"batch": {"x": {0: S}}, "pair": ({0: S}, {0: T})}
    graph = import_model(Nested(), ({"x": x}, (x.clone(), y)), dynamic_shapes=shapes)
    assert [str(v.type.shape[0]) for v in graph.inputs] == ["seq", "seq", "t"]


def test_mansards_own_dims() -> None:
    seq, wide = OurDim("seq", 2, 48), OurDim("wide", 16, 64, 16)
    module = as_module(lambda a, b: (a + 1) @ b)
    graph = import_model(module, (randn(4, 32), randn(32, 4)), dynamic_shapes=({0: seq, 1: wide}, {0: wide}))
    assert graph.dims() == {"seq": seq, "wide_by_16": OurDim("wide_by_16", 1, 4)}
    check(graph, module, (randn(2, 16), randn(16, 4)))
    for shape in ((2, 24), (1, 16), (2, 80)):
        with pytest.raises(InputError):
            check(graph, as_module(lambda a, b: (a + 1) @ b), (randn(*shape), randn(shape[1], 4)))


EMPTIED: dict[str, Any] = {
    "linear": nn.Linear(4, 3),
    "reductions": lambda a: (a.sum(1), a.prod(1), (a > 0).all(1), a.sum()),
    "softmax": lambda a: (a.softmax(1), a.softmax(2)),
    "products": lambda a: (a @ a.mT, a.mT @ a),
    "shapes": lambda a: (a.flatten(), a.transpose(1, 2).contiguous(), torch.cat([a, torch.ones(2, 1, 4)], 1)),
    "attention": lambda a: F.scaled_dot_product_attention(a, a, a, is_causal=True),
    "sort and cumsum": lambda a: (a.sort(1), a.cumsum(1), a.flip(1)),
}


def test_a_stated_minimum_of_zero_is_honoured() -> None:
    count = len(EMPTIED)
    module = SideBySide([as_module(function) for function in EMPTIED.values()], [1] * count)
    shapes = {"inputs": ({1: OurDim("n", 0, 9)},) * count}
    graph = import_model(module, vectors(5) * count, dynamic_shapes=shapes)
    assert graph.dims()["n"].min == 0
    for n in (0, 1, 5):
        check(graph, module, vectors(n) * count)


@pytest.mark.parametrize("function", [lambda a: a[:, :1], lambda a: a[:, -1] + 1])
def test_a_minimum_that_the_exported_program_narrows_is_the_contract(function: Any) -> None:
    module = as_module(function)
    graph = import_model(module, vectors(5), dynamic_shapes=({1: OurDim("n", 0, 9)},))
    assert graph.dims() == {"n": OurDim("n", 1, 9)}
    for n in (1, 5):
        check(graph, module, vectors(n))
    with pytest.raises(InputError, match="dim 'n' is 0; the model was compiled for 1 to 9"):
        check(graph, as_module(lambda a: a), vectors(0))


def test_torchs_dims_start_at_one() -> None:
    graph = import_model(as_module(lambda a: a * 2), vectors(5), dynamic_shapes=({1: Dim("n", max=9)},))
    assert graph.dims() == {"n": OurDim("n", 1, 9)}


def test_inputs_that_are_not_named_are_static() -> None:
    module = as_module(lambda a, b: a * b)
    graph = import_model(module, (randn(5, 4), randn(4)), dynamic_shapes={"a": {0: OurDim("n", 1, 9)}})
    assert [str(v.type) for v in graph.inputs] == ["[n]x4xf32", "4xf32"]
    with pytest.raises(ImportModelError, match="names 'x'; the inputs are a, b"):
        import_model(module, (randn(5, 4), randn(4)), dynamic_shapes={"x": {0: OurDim("n", 1, 9)}})


def test_example_inputs_that_do_not_fit() -> None:
    with pytest.raises(ImportModelError, match="example inputs do not fit Linear: missing a required"):
        import_model(nn.Linear(4, 3))


class Pairs(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch._check(x.shape[0] % 2 == 0)
        torch._check(2 * x.shape[1] % 6 == 0)
        return x * 2


def test_what_guards_divide_a_size_by_is_its_contract() -> None:
    x = torch.randn(6, 9)
    dynamic = {"x": {0: torch.export.Dim.AUTO, 1: torch.export.Dim.AUTO}}
    graph = import_model(Pairs().eval(), (x,), dynamic_shapes=dynamic, cache=False)
    assert {dim.multiple for dim in graph.dims().values()} == {2, 3}
    for shape in ((6, 9), (2, 3), (10, 12)):
        x = torch.randn(shape)
        (result,) = interpret(graph, [x.numpy()])
        torch.testing.assert_close(torch.from_numpy(result), Pairs()(x))
    for shape in ((7, 9), (6, 10)):
        with pytest.raises(ShapeContractError, match="multiples of"):
            interpret(graph, [torch.randn(shape).numpy()])
