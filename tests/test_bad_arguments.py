"""Arguments of wrong types and impossible values, for every parameter of the public interface: each is an
error of Mansard's own tree that says what was wrong."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import mansard
from mansard.arguments import shown
from mansard.errors import (
    ArtifactError,
    CompileError,
    DeadlineExceededError,
    DeviceUnavailableError,
    ImportModelError,
    InputError,
    MansardError,
    PlacementError,
    ShapeContractError,
    SignatureError,
    WaitTimeoutError,
)

X = np.zeros((2, 4), np.float32)


class Hostile:
    """Refuses whatever one might try."""

    def _refuse(self, *args: object) -> Any:
        raise RuntimeError("refused")

    __iter__ = __eq__ = __bool__ = __len__ = __repr__ = __fspath__ = __index__ = __float__ = _refuse
    __hash__ = _refuse  # type: ignore[assignment]


def _deep() -> Any:
    value: Any = []
    for _ in range(3000):
        value = [value]
    return value


ODD: dict[str, Any] = {
    **{"None": None, "True": True, "0": 0, "-1": -1, "2**31": 2**31, "2**63": 2**63, "10**30": 10**30},
    **{"10**400": 10**400, "-10**400": -(10**400), "10**5000": 10**5000, "1.5": 1.5, "nan": float("nan")},
    **{"inf": float("inf"), "-inf": float("-inf"), "1j": 1j, "np.int64": np.int64(3)},
    **{"np.nan": np.float32("nan"), "''": "", "text": "odd", "surrogate": "\ud800", "NUL": "a\0b"},
    **{"long": "x" * 300, "bytes": b"odd", "object": object(), "[]": [], "[None]": [None], "deep": _deep()},
    **{"{}": {}, "{1:2}": {1: 2}, "{1}": {1}, "()": (), "(1,2)": (1, 2), "type": int, "module": torch},
    **{"array": np.zeros(3), "tensor": torch.zeros(3), "...": ..., "function": lambda *_: 1},
    "hostile": Hostile(),
}  # fmt: skip
INTS = {"0", "2**31", "np.int64"}
"""What counts of things take."""
LIMITLESS = {"inf", "1.5", "2**31", "2**63", "10**30", "10**400", "10**5000", "np.int64"}
"""Times within which the call ends."""
NUMBERS = LIMITLESS | {"0", "-1", "-inf", "-10**400"}
EMPTY = {"[]", "()", "{}"}


@pytest.fixture(scope="module")
def model() -> Any:
    layer = torch.nn.Linear(4, 4)
    shapes = {"input": {0: mansard.Dim("batch", 1, 64)}}
    with mansard.compile(layer, (torch.zeros(2, 4),), devices="cpu", dynamic_shapes=shapes) as compiled:
        yield compiled


@pytest.fixture(scope="module")
def file(model: mansard.Model, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("model") / "m.mansard"
    model.save(path)
    return str(path)


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some of the values are names that files can have."""
    monkeypatch.chdir(tmp_path)


def refused(
    call: Callable[[Any], Any], error: type[MansardError], allowed: set[str], values: set[str] | None = None
) -> None:
    """Each odd value but the allowed ones raises an error of the class, with a message of a few lines."""
    for label, value in ODD.items():
        if values is not None and label not in values:
            continue
        try:
            result = call(value)
        except error as raised:
            assert label not in allowed, (label, raised)
            assert 10 < len(str(raised)) < 1000, label
        else:
            assert label in allowed, label
            if isinstance(result, mansard.Model):
                result.close()


def keyword(function: Callable[..., Any], name: str, *args: Any, **others: Any) -> Callable[[Any], Any]:
    return lambda value: function(*args, **{**others, name: value})


# Calls ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "error", "allowed"),
    [
        ("priority", InputError, {"0", "-1", "np.int64"}),
        ("deadline", (InputError, DeadlineExceededError), {"None", *LIMITLESS}),
    ],
)
def test_calls(model, name, error, allowed):
    def run_async(*args: Any, **named: Any) -> Any:
        return asyncio.run(_awaited(model.run_async(*args, **named)))

    def batches_async(*args: Any, **named: Any) -> Any:
        return asyncio.run(_awaited(model.run_in_batches_async(*args, **named)))

    for function in (model, run_async, model.run_in_batches, batches_async):
        refused(keyword(function, name, X), error, allowed)
        refused(function, InputError, set())
        with pytest.raises(InputError, match="unexpected keyword argument 'bogus'"):
            function(X, bogus=1)


async def _awaited(call: Any) -> Any:
    return await call


def test_timeouts(model):
    expiring = {"0", "-1", "-inf", "-10**400"}  # a short call may have ended nevertheless
    values = set(ODD) - expiring
    refused(keyword(model, "timeout", X), InputError, {"None", *LIMITLESS}, values)
    for label in expiring:
        try:
            model(X, timeout=ODD[label])
        except WaitTimeoutError as error:
            # Before it began, or while it was waited for.
            assert "timeout of" in str(error) or "was not reached within" in str(error)


def test_sizes_of_batches(model):
    refused(keyword(model.run_in_batches, "size", X), InputError, {"None", "np.int64"})


def test_profiles(model):
    refused(keyword(model.profile, "lockstep", X), InputError, {"True"})
    refused(keyword(model.profile, "in_flight", X), InputError, {"None", "0", "-1", "2**31", "np.int64"})
    large = {"2**31", "2**63", "10**30", "10**400", "10**5000"}
    refused(keyword(model.profile, "requests", X), InputError, {"np.int64"}, set(ODD) - large)
    refused(keyword(model.profile, "requests", X), InputError, set(), large - {"2**31"})


def test_models(model):
    refused(lambda value: mansard.Model(value, model._resources), InputError, set())
    refused(lambda value: mansard.Model(model.plan, value), InputError, set())
    refused(lambda value: model.save("m", value), ArtifactError, {"None"}, set(ODD) - {"function", "type"})


# Files ------------------------------------------------------------------------------------------------


def test_paths(model, file):
    refused(mansard.load, ArtifactError, set())
    refused(lambda value: mansard.tune(value, 0.0), ArtifactError, set())
    refused(model.save, ArtifactError, {"text", "bytes"})


@pytest.mark.parametrize(
    ("name", "error", "allowed"),
    [
        ("devices", DeviceUnavailableError, {"None", *EMPTY}),
        ("verify", ArtifactError, {"None", "True"}),
        ("copy", ArtifactError, {"True"}),
        ("trusted_keys", ArtifactError, {"None"}),
        ("max_in_flight", InputError, {"np.int64"}),
        ("max_queued", InputError, {"None", *INTS}),
    ],
)
def test_loading(file, name, error, allowed):
    refused(keyword(mansard.load, name, file), error, allowed)


def test_devices_of_a_mapping(file):
    refused(lambda value: mansard.load(file, {"cpu": value}), DeviceUnavailableError, set())
    with pytest.raises(DeviceUnavailableError, match="has no device slot 'npu'"):
        mansard.load(file, {"npu": "cpu"})


def test_keys_and_drivers(file):
    refused(lambda value: mansard.load(file, trusted_keys=[value]), ArtifactError, set())
    refused(mansard.configure_driver, DeviceUnavailableError, set())
    with pytest.raises(SignatureError, match="is not signed"):
        mansard.load(file, trusted_keys=["ed25519:" + "0" * 64])


# Compilation --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "error", "allowed"),
    [
        ("devices", MansardError, {"None", *EMPTY}),
        ("target", MansardError, {"None", *EMPTY}),
        ("placement", PlacementError, {"None"}),
        ("objective", PlacementError, {"None"}),
        ("fallback", PlacementError, {"None"}),
        ("precision", CompileError, set()),
        ("cache", CompileError, {"True"}),
        ("tune", InputError, {"None", *NUMBERS}),
        ("max_in_flight", InputError, {"np.int64"}),
        ("max_queued", InputError, {"None", *INTS}),
        ("progress", CompileError, {"None", "function", "type"}),
        ("dump", CompileError, {"None", "function", "type"}),
        ("start", CompileError, {"None"}),
        ("skip", CompileError, EMPTY),
        ("frontend", ImportModelError, {"None"}),
        ("kwargs", ImportModelError, {"None", *EMPTY}),
        ("input_names", ImportModelError, {"None"}),
        ("dynamic_shapes", ImportModelError, {"None", "[None]", *EMPTY}),
    ],
)
def test_compiling(name, error, allowed):
    """What is allowed is compiled elsewhere: only refusals, which must not take a compilation, are tried."""
    layer, example = torch.nn.Linear(4, 4), (torch.zeros(2, 4),)
    values = set(ODD) - allowed
    refused(keyword(mansard.compile, name, layer, example, **_cpu(name)), error, set(), values)
    if name in inspect.signature(mansard.lower).parameters:
        refused(keyword(mansard.lower, name, layer, example, **_cpu(name)), error, set(), values)


def _cpu(name: str) -> dict[str, str]:
    return {} if name in ("devices", "target") else {"devices": "cpu"}


def test_passes_to_stop_after():
    call = keyword(mansard.lower, "stop_after", torch.nn.Linear(4, 4), (torch.zeros(2, 4),), devices="cpu")
    refused(call, CompileError, set(), set(ODD) - {"None"})


def test_models_and_example_inputs():
    example = (torch.zeros(2, 4),)
    refused(lambda value: mansard.compile(value, example, devices="cpu"), ImportModelError, set())
    layer = torch.nn.Linear(4, 4)
    values = {"None", "0", "text", "[]", "[None]", "deep", "{1:2}", "type", "array", "tensor", "hostile"}
    refused(lambda value: mansard.compile(layer, value, devices="cpu"), ImportModelError, set(), values)


def test_times_of_a_search(model):
    refused(lambda value: mansard.tune(model, value), InputError, set(), set(ODD) - NUMBERS)
    refused(keyword(mansard.tune, "cache", model, 0.0), CompileError, set(), set(ODD) - {"True"})
    refused(
        keyword(mansard.tune, "progress", model, 0.0),
        CompileError,
        set(),
        set(ODD) - {"None", "function", "type"},
    )


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.parametrize("part", [True, False], ids=["a part", "the whole"])
@pytest.mark.parametrize("freeze", [torch.jit.freeze, lambda module: module], ids=["frozen", "plain"])
def test_scripted_modules(part, freeze):
    module: Any = freeze(torch.jit.script(torch.nn.Linear(4, 4).eval()))
    expected = "its part '0' is a torch.jit module" if part else "the model is a torch.jit module"
    module = torch.nn.Sequential(module) if part else module
    with pytest.raises(ImportModelError, match=expected):
        mansard.compile(module, (torch.zeros(2, 4),), devices="cpu")


@pytest.mark.parametrize("suffix", [".pt2", ".mlir", ".mir"])
def test_model_files(tmp_path, suffix):
    import os

    os.mkfifo(tmp_path / f"pipe{suffix}")
    (tmp_path / f"folder{suffix}").mkdir()
    (tmp_path / f"damaged{suffix}").write_bytes(b"graph \xff")
    for name in ("pipe", "folder", "damaged", "missing", "a\0b", "\ud800", "x" * 300):
        for path in (tmp_path / f"{name}{suffix}", str(tmp_path / f"{name}{suffix}")):
            with pytest.raises(ImportModelError):
                mansard.compile(path, devices="cpu")


# Descriptions -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "allowed"),
    [
        ("name", {"text", "long"}),
        ("min", {"0", "2**31", "np.int64"}),
        ("max", {"0", "2**31", "np.int64"}),
        ("multiple", {"2**31", "np.int64"}),
        ("typical", {"None", "0", "-1", "2**31", "np.int64"}),
    ],
)
def test_dims(name, allowed):
    sound = {"name": "n", "min": 0}
    refused(lambda value: mansard.Dim(**{**sound, name: value}), ShapeContractError, allowed)


@pytest.mark.parametrize("name", ["a b", "1n", "if", "None", "n*m", "ﬁ", "n.m", "min()"])
def test_names_that_expressions_cannot_contain(name):
    with pytest.raises(ShapeContractError, match="is not the name of a dim"):
        mansard.Dim(name)


@pytest.mark.parametrize(
    ("name", "allowed"),
    [
        ("objective", set()),
        ("pins", EMPTY),
        ("min_share", {"0"}),
        ("fallback", set()),
        ("memory", EMPTY),
        ("colocate", EMPTY),
        (
            "search_seconds",
            {"0", "1.5", "inf", "2**31", "2**63", "10**30", "10**400", "10**5000", "np.int64"},
        ),
        ("split", set()),
    ],
)
def test_placement_options(name, allowed):
    refused(keyword(mansard.PlacementOptions, name), PlacementError, allowed)
    if name in ("pins", "memory"):
        refused(lambda value: mansard.PlacementOptions(**{name: [value]}), PlacementError, set())
        refused(
            lambda value: mansard.PlacementOptions(**{name: [("*", value)]}),
            PlacementError,
            allowed={"''", "text", "surrogate", "NUL", "long"}
            if name == "pins"
            else {"0", "2**31", "2**63", "10**30", "10**400", "10**5000", "np.int64"},
        )


def test_every_value_can_be_shown():
    for label, value in ODD.items():
        assert 0 < len(shown(value)) <= 200, label
    assert shown("short") == "'short'"
    assert "Hostile" in shown(Hostile())
