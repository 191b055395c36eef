"""How each framework states a case: what is compiled, with which options, and what the framework answers."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.model_zoo.cases import BATCH, Case, parts_of
from benchmarks.model_zoo.weights import Array

Options = dict[str, Any]


@dataclass
class Route:
    """A case in one framework. ``model`` and ``options`` go to `mansard.compile`, ``reference`` answers."""

    model: Any
    options: Options
    reference: Callable[[Sequence[Array]], list[Array]]
    last: bool = False
    """Whether images have their channels last."""
    sizes: Sequence[Mapping[str, int]] = field(default_factory=list)
    """Of the calls."""

    def inputs(self, case: Case, sizes: Mapping[str, int]) -> list[Array]:
        """The inputs of a call, in the framework's layout."""
        arrays = case.arrays(sizes)
        return [
            np.ascontiguousarray(a.transpose(0, 2, 3, 1)) if self.last and x.image else a
            for x, a in zip(case.inputs, arrays, strict=True)
        ]


def routes() -> dict[str, Callable[[Case, bool, Path], Route | None]]:
    """By framework: the route of a case with static or dynamic sizes, None where the model does not exist."""
    return {"pytorch": _pytorch, "onnx": _onnx, "jax": _jax, "tflite": _tflite}


def _calls(case: Case, dynamic: bool) -> list[Mapping[str, int]]:
    return [case.usual, case.other] if dynamic else [case.usual]


def _dims(case: Case, names: Sequence[str] | None = None) -> dict[str, Any]:
    import mansard

    return {n: mansard.Dim(n, *r) for n, r in case.ranges.items() if names is None or n in names}


def _torch_dims(case: Case, symbol: Callable[[str, int, int], Any]) -> tuple[dict[int, Any], ...]:
    """``dynamic_shapes`` by input."""
    known = {name: symbol(name, *limits) for name, limits in case.ranges.items()}
    shapes = []
    for x in case.inputs:
        axes = {}
        for axis, size in enumerate(x.shape):
            if isinstance(size, str):
                factor, name, offset = parts_of(size)
                scaled = known[name] if factor == 1 else factor * known[name]
                axes[axis] = scaled + offset if offset else scaled
        shapes.append(axes)
    return tuple(shapes)


def _network(case: Case) -> tuple[Any, tuple[Any, ...]]:
    """The module of a case, and example inputs: sizes above 1, as torch.export wants them."""
    import torch

    from benchmarks.model_zoo.on_torch import Network

    example = tuple(map(torch.from_numpy, case.arrays(case.other or case.usual)))
    usual = tuple(map(torch.from_numpy, case.arrays(case.usual)))
    return Network(case.architecture, usual), example


def _pytorch(case: Case, dynamic: bool, folder: Path) -> Route:
    import torch

    network, example = _network(case)

    def reference(inputs: Sequence[Array]) -> list[Array]:
        with torch.no_grad():
            results = network(*map(torch.from_numpy, inputs))
        return [r.numpy() for r in (results if isinstance(results, tuple) else (results,))]

    options: Options = {"inputs": tuple(map(torch.from_numpy, case.arrays(case.usual)))}
    if dynamic:
        shapes = _torch_dims(case, lambda name, low, high: torch.export.Dim(name, min=low, max=high))
        options = {"inputs": example, "dynamic_shapes": {"inputs": shapes}}
    return Route(network, options, reference, sizes=_calls(case, dynamic))


def _onnx(case: Case, dynamic: bool, folder: Path) -> Route:
    import onnxruntime

    path = folder / f"{case.name}{'-open' if dynamic else ''}-{_sources()}.onnx"
    if not path.exists():
        _write_onnx(case, dynamic, path)
    session = onnxruntime.InferenceSession(str(path))
    names = [i.name for i in session.get_inputs()]

    def reference(inputs: Sequence[Array]) -> list[Array]:
        return list(session.run(None, dict(zip(names, inputs, strict=True))))

    options: Options = {"dims": _dims(case)} if dynamic else {}
    return Route(path, options, reference, sizes=_calls(case, dynamic))


def _write_onnx(case: Case, dynamic: bool, path: Path) -> None:
    import torch

    network, example = _network(case)
    shapes = _torch_dims(case, lambda name, low, high: torch.export.Dim(name, min=low, max=high))
    program = torch.onnx.export(
        network,
        example if dynamic else tuple(map(torch.from_numpy, case.arrays(case.usual))),
        dynamo=True,
        dynamic_shapes={"inputs": shapes} if dynamic else None,
        verbose=False,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    program.save(str(path))


def _sources() -> str:
    """A digest of what defines the models."""
    here = Path(__file__).parent
    files = [
        here / "cases.py",
        here / "on_torch.py",
        here / "weights.py",
        *sorted(here.glob("networks/*.py")),
    ]
    return hashlib.sha256(b"".join(f.read_bytes() for f in files)).hexdigest()[:12]


def _jax(case: Case, dynamic: bool, folder: Path) -> Route:
    import jax

    from benchmarks.model_zoo.on_jax import Network

    network = Network(case.architecture)
    route = Route(None, {}, lambda inputs: [], last=True, sizes=_calls(case, dynamic))
    example = route.inputs(case, case.usual)
    function = functools.partial(network, network.initialise(example))
    jitted = jax.jit(function)
    route.reference = lambda inputs: [np.asarray(r) for r in jax.tree.leaves(jitted(*inputs))]
    route.model, route.options = function, {"inputs": tuple(example)}
    if dynamic:
        limits = ((f"{n} >= {low}", f"{n} <= {high}") for n, (low, high) in case.ranges.items())
        scope = jax.export.SymbolicScope([limit for both in limits for limit in both])
        specs = []
        for x, array in zip(case.inputs, example, strict=True):
            shape = [x.shape[i] for i in ((0, 2, 3, 1) if x.image else range(len(x.shape)))]
            sizes = jax.export.symbolic_shape(", ".join(map(str, shape)), scope=scope)
            specs.append(jax.ShapeDtypeStruct(sizes, array.dtype))
        route.model = jax.export.export(jitted)(*specs)
        route.options = {"dims": _dims(case)}
    return route


def _tflite(case: Case, dynamic: bool, folder: Path) -> Route | None:
    from benchmarks.tflite_ops.litert import litert_apart

    path = folder / f"{case.name}{'-open' if dynamic else ''}.tflite"
    if not path.exists():
        return None

    def reference(inputs: Sequence[Array]) -> list[Array]:
        results = litert_apart(path, list(inputs), reference=False)
        if results is None:
            raise RuntimeError("LiteRT cannot run the model")
        return results

    calls = [case.usual, {**case.usual, BATCH: case.other[BATCH]}] if dynamic else [case.usual]
    options: Options = {}
    if dynamic:
        from mansard.frontends.tflite.importer import import_tflite

        low, high = case.ranges[BATCH]
        import mansard

        options["dims"] = {name: mansard.Dim(name, low, high) for name in import_tflite(path).dims()}
    return Route(path, options, reference, last=True, sizes=calls)
