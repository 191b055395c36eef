"""What the PyTorch frontend makes of a module beside its ops: names, weights, states, errors."""

from __future__ import annotations

import dataclasses
import re
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.frontends.torch_import import Apply, check
from torch import nn
from torch._export import utils as export_functions
from torch._higher_order_ops.while_loop import while_loop

from mansard.errors import ImportModelError, UnsupportedOpError
from mansard.frontends import import_model
from mansard.frontends.pytorch.decompositions.overrides import QUICK_OVERRIDES
from mansard.frontends.pytorch.importer import import_torch
from mansard.ir.interpreter.graph import interpret

torch.manual_seed(0)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4, bias=False)
        self.second.weight = self.first.weight
        self.drop, self.unused = nn.Dropout(), nn.Linear(99, 99)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.drop(self.first(x)))


# Weights ----------------------------------------------------------------------------------------
def test_weights_keep_their_names_and_their_memory() -> None:
    model = Tied()
    graph = import_model(model, torch.randn(3, 4))
    held = model.state_dict()
    assert [c.key for c in graph.constants.values()] == ["first.weight", "first.bias"]  # tied: once
    for constant in graph.constants.values():
        assert np.shares_memory(constant.load(), held[constant.key].numpy())
    check(graph, model, (torch.randn(3, 4),))


def test_weights_are_read_when_asked_for() -> None:
    model = nn.Linear(4, 3)
    graph = import_model(model, torch.randn(2, 4))
    with torch.no_grad():
        model.weight.fill_(2.0)
    check(graph, model, (torch.randn(2, 4),))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_element_types(dtype: torch.dtype) -> None:
    model = nn.Linear(4, 3).to(dtype)
    graph = import_model(model, torch.randn(2, 4, dtype=dtype))
    weight = next(c.load() for c in graph.constants.values() if c.key == "weight")
    assert weight.dtype.name == str(dtype).removeprefix("torch.")
    assert weight.ctypes.data == model.weight.data_ptr()
    check(graph, model, (torch.randn(2, 4, dtype=dtype),))


def test_weights_that_are_not_contiguous() -> None:
    model = nn.Linear(4, 3)
    model.weight = nn.Parameter(torch.randn(4, 3).T)
    check(import_model(model, torch.randn(2, 4)), model, (torch.randn(2, 4),))


def test_weights_without_data_are_refused() -> None:
    with torch.device("meta"):
        model = nn.Linear(4, 3)
    with pytest.raises(ImportModelError, match=r"'weight' has no data"):
        import_model(model, torch.randn(2, 4, device="meta"))


# Inputs and outputs -----------------------------------------------------------------------------
@dataclasses.dataclass
class Result:
    scores: torch.Tensor
    hidden: torch.Tensor | None = None


torch.export.register_dataclass(Result, serialized_type_name="test_frontend.Result")


def test_inputs_are_named_by_the_signature() -> None:
    class Model(nn.Module):
        def forward(self, ids: torch.Tensor, extra: dict[str, torch.Tensor], *, mask: torch.Tensor) -> Any:
            return ids + extra["bias"] * mask

    x = torch.randn(2)
    graph = import_model(Model(), (x, {"bias": x}), kwargs={"mask": x})  # one tensor, three inputs
    assert [v.name for v in graph.inputs] == ["ids", "extra_bias", "mask"]
    (out,) = interpret(graph, [np.float32([1, 2]), np.float32([3, 4]), np.float32([5, 6])])
    np.testing.assert_array_equal(out, [16, 26])
    renamed = import_model(Model(), (x, {"bias": x}), kwargs={"mask": x}, input_names=["a", "b", "c"])
    assert [v.name for v in renamed.inputs] == ["a", "b", "c"]
    with pytest.raises(ImportModelError, match="1 input names for 3 tensor inputs"):
        import_model(Model(), (x, {"bias": x}), kwargs={"mask": x}, input_names=["a"])


def test_example_inputs_may_be_views_of_one_tensor() -> None:
    class Model(torch.nn.Module):
        def forward(self, row: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
            return row + rows.sum(0)

    batch = torch.randn(3, 4)
    shapes = {"row": None, "rows": {0: torch.export.Dim("n", min=2)}}
    for rows, dynamic in ((batch, None), (batch[1:], None), (batch[1:], shapes)):
        graph = import_model(Model(), (batch[0], rows), dynamic_shapes=dynamic)
        expected = (batch[0] + rows.sum(0)).numpy()
        np.testing.assert_allclose(interpret(graph, [batch[0].numpy(), rows.numpy()])[0], expected, rtol=1e-6)


OUTPUTS: dict[str, tuple[Any, list[str]]] = {
    "one": (lambda x: x * 2, ["output"]),
    "tuple": (lambda x: (x * 2, x + 1), ["output_0", "output_1"]),
    "dict": (lambda x: {"a": x * 2, "b": {"c": x + 1}}, ["a", "b.c"]),
    "dataclass": (lambda x: Result(x * 2), ["scores"]),
    "none": (lambda x: (None, x * 2, [x, None]), ["output_1", "output_2.0"]),
    "the input twice": (lambda x: (x, x), ["output_0", "output_1"]),
    "fixed numbers are dropped": (lambda x: (x * 2, 3, "text"), ["output_0"]),
}


@pytest.mark.parametrize("name", OUTPUTS)
def test_outputs_are_flattened_and_named(name: str) -> None:
    function, names = OUTPUTS[name]
    graph = import_model(Apply(function), torch.randn(2, 3))
    assert list(graph.output_names) == names
    x = np.random.default_rng(0).standard_normal((2, 3)).astype(np.float32)
    results = interpret(graph, [x])
    flat = torch.utils._pytree.tree_leaves(function(torch.from_numpy(x)))
    wanted = [t for t in flat if isinstance(t, torch.Tensor)]
    for out, expected in zip(results, wanted, strict=True):
        np.testing.assert_allclose(out, expected.numpy())


def test_numbers_are_fixed_at_their_example_value() -> None:
    graph = import_model(Apply(lambda x, n: x * n), (torch.randn(2), 3))
    assert [v.name for v in graph.inputs] == ["a"]
    np.testing.assert_array_equal(interpret(graph, [np.float32([1, 2])])[0], [3, 6])


def test_unused_inputs_stay() -> None:
    graph = import_model(Apply(lambda x, y: x + 1), (torch.randn(2), torch.randn(3)))
    assert [v.name for v in graph.inputs] == ["a", "b"]


def test_the_example_may_be_one_tensor_and_training_flags_are_kept() -> None:
    model = Tied().train()
    model.drop.eval()
    flags = [m.training for m in model.modules()]
    graph = import_model(model, torch.randn(3, 4))
    assert [m.training for m in model.modules()] == flags
    check(graph, model, (torch.randn(3, 4),))


# States -----------------------------------------------------------------------------------------
class Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("cache", torch.ones(2, 4, 3))
        self.register_buffer("steps", torch.tensor(5))
        self.register_buffer("fixed", torch.full((3,), 2.0))

    def forward(self, x: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        self.cache.index_copy_(1, position, x)
        self.steps.add_(1)
        return (self.cache * self.fixed).sum(1) + self.steps


def test_updated_buffers_are_states() -> None:
    model = Counter()
    x = torch.randn(2, 1, 3)
    graph = import_model(model, (x, torch.tensor([1])))
    assert [s.before.name for s in graph.states] == ["cache", "steps"]
    assert [c.key for c in graph.constants.values()] == ["fixed"]
    states: dict[str, np.ndarray] = {}
    for position in (1, 3, 1):
        x = torch.randn(2, 1, 3)
        (out,) = interpret(graph, [x.numpy(), np.array([position])], states)
        with torch.no_grad():
            expected = model(x, torch.tensor([position]))
        np.testing.assert_allclose(out, expected.numpy(), rtol=1e-5)
    np.testing.assert_array_equal(states["cache"], model.cache.numpy())
    assert states["steps"] == 8


def test_buffers_held_by_a_plain_object_as_well() -> None:
    """As caches of transformers do: the buffer is registered, and used through the cache object."""

    class Cache:
        def __init__(self, keys: torch.Tensor) -> None:
            self.keys = keys

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("keys", torch.zeros(4, 3))
            self.cache = Cache(self.keys)

        def forward(self, x: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
            self.cache.keys.index_copy_(0, position, x)
            return self.cache.keys.sum(0)

    graph = import_model(Model(), (torch.randn(1, 3), torch.tensor([1])))
    assert [s.before.name for s in graph.states] == ["keys"]
    states: dict[str, np.ndarray] = {}
    x = np.ones((1, 3), np.float32)
    sums = [interpret(graph, [x, np.array([i])], states)[0][0] for i in (0, 2, 2)]
    assert sums == [1, 2, 2]


# Locations --------------------------------------------------------------------------------------
def test_ops_know_their_place_in_the_model() -> None:
    graph = import_model(nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.ReLU())), torch.randn(2, 4))
    places = [op.location.text for op in graph.ops]
    assert places[0].startswith("0 (")
    assert re.fullmatch(r"1\.0 \(\w+\.py:\d+\)", places[-1])
    local = import_model(Apply(lambda x: x + 1), torch.randn(2))
    assert re.fullmatch(r"(torch_import|test_frontend)\.py:\d+", local.ops[0].location.text)


# Exported programs ------------------------------------------------------------------------------
def test_exported_programs_and_files(tmp_path: Path) -> None:
    model = nn.Linear(4, 3)
    batch = torch.export.Dim("batch", max=7)
    program = torch.export.export(model, (torch.randn(2, 4),), dynamic_shapes=({0: batch},))
    path = tmp_path / "linear.pt2"
    torch.export.save(program, path)
    for source in (program, path, str(path)):
        graph = import_model(source)
        ((name, dim),) = graph.dims().items()
        assert (name, dim.min, dim.max) == ("input_dim0", 1, 7)
        check(graph, model, (torch.randn(5, 4),))


# Errors -----------------------------------------------------------------------------------------
def branch(x: torch.Tensor) -> torch.Tensor:
    return x if x.sum() > 0 else -x


def write(x: torch.Tensor) -> torch.Tensor:
    return x.add_(1) * 2


UNSUPPORTED: dict[str, tuple[Any, str]] = {
    "svd": (
        lambda x: torch.linalg.svd(x)[1],
        r"aten\._linalg_svd.*torch_import\.py:\d+.*no lowering.*supported: elementwise",
    ),
    "random": (torch.rand_like, r"aten\.rand_like.*random numbers"),
    "complex": (
        lambda x: torch.linalg.svd(torch.fft.fft(x))[1],
        r"aten\.linalg_svd' at torch_import\.py:\d+: of complex numbers",
    ),
    "loop": (
        lambda x: while_loop(lambda y: y.sum() < 9, lambda y: (y + 1,), (x,))[0],
        r"while_loop.*torch_import\.py:\d+.*not known at import.*by constants alone",
    ),
    "writing into an input": (write, "writes into its input 'a'"),
}


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_unsupported_ops_name_the_op_and_its_place(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    function, message = UNSUPPORTED[name]
    with pytest.raises(UnsupportedOpError, match=message):
        import_model(Apply(function), torch.randn(3, 4))
    assert capfd.readouterr().err == ""


def test_the_place_of_an_unsupported_op_names_the_module() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(Apply(lambda x: torch.linalg.svd(x)[1])))
    with pytest.raises(UnsupportedOpError) as caught:
        import_model(model, torch.randn(3, 4))
    assert caught.value.location.startswith("1.0 (torch_import.py:")
    assert caught.value.op == "aten._linalg_svd"


def test_modules_that_cannot_be_exported(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ImportModelError, match=r"cannot export Apply: .*data-dependent.*x\.sum\(\) > 0"):
        import_model(Apply(branch), torch.randn(3))
    with pytest.raises(ImportModelError, match=r"cannot export Linear: .*\[2, 5\]"):
        import_model(nn.Linear(4, 3), torch.randn(2, 5))
    with pytest.raises(ImportModelError, match="number that varies"):
        shapes = (None, torch.export.Dim.DYNAMIC)
        import_model(Apply(lambda x, n: x * n), (torch.randn(2), 3), dynamic_shapes=shapes)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("where", ["lowering.rewrite", "export.expand"])
def test_what_torch_raises_on_the_way_is_an_error_of_the_import(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_graph: Any) -> None:
        raise RuntimeError("expected self to be int8 or uint8, got torch.int32")

    monkeypatch.setattr(f"mansard.frontends.pytorch.{where}", refuse)
    with pytest.raises(ImportModelError, match="RuntimeError: expected self to be int8"):
        import_model(Apply(torch.relu), torch.randn(3))


def test_things_that_are_no_pytorch_model(tmp_path: Path) -> None:
    with pytest.raises(ImportModelError, match=r"int is not a PyTorch model; supported: torch\.nn\.Module"):
        import_torch(3)
    with pytest.raises(ImportModelError, match="no such file"):
        import_torch("missing.pt2")
    (tmp_path / "broken.pt2").write_bytes(b"not a program")
    with pytest.raises(ImportModelError, match=r"broken\.pt2 is not a program"):
        import_torch(tmp_path / "broken.pt2")


# What PyTorch's decompositions cost ---------------------------------------------------------------
def test_decompositions_leave_torch_as_it_was() -> None:
    def replaced() -> tuple[Any, Any]:
        return torch._ops.Callable, export_functions._materialize_cpp_cia_ops  # type: ignore[attr-defined]

    before = replaced()
    inside: list[tuple[Any, Any]] = []
    entered, leave = threading.Event(), threading.Event()

    def other() -> None:
        with QUICK_OVERRIDES:
            entered.set()
            leave.wait(10)
            inside.append(replaced())

    thread = threading.Thread(target=other)
    with QUICK_OVERRIDES:
        thread.start()
        entered.wait(10)
    leave.set()
    thread.join()
    assert all(a is not b for a, b in zip(inside[0], before, strict=True))
    assert replaced() == before
