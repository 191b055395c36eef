"""Distinct kernels of a model, each scheduled and compiled once: in parallel, or found in the cache."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from mansard import dims
from mansard.cache import Folder, compiler_digest
from mansard.codegen.backend import Backend, CompiledDispatch
from mansard.codegen.kernel_target import KernelTarget
from mansard.codegen.parameters import Parameters
from mansard.compiler.identity import dispatch_key
from mansard.compiler.sources import panels_from_data, panels_to_data
from mansard.dims import Dim, DimLike
from mansard.errors import ArtifactError
from mansard.hal.executable import EntryPoint, ExecutableSpec
from mansard.ir.dispatch import Dispatch
from mansard.ir.types import Value

Choose = Callable[[str], Parameters | None]
"""The schedule parameters to use for a kernel, by its `dispatch_key`; None for the default."""


@dataclass
class KernelCompiler:
    """Compiles dispatches for one target. ``folder`` is where compiled kernels are kept, if anywhere."""

    backend: Backend
    target: KernelTarget
    folder: Folder | None = None
    _target_text: str = field(init=False)

    def __post_init__(self) -> None:
        shown = {f.name: getattr(self.target, f.name) for f in dataclasses.fields(self.target)}
        shown["features"] = sorted(self.target.features)
        self._target_text = f"{self.backend.name} {shown}"

    def compile(self, dispatch: Dispatch, key: str, parameters: Parameters | None = None) -> CompiledDispatch:
        """The kernel of a dispatch; ``key`` is its `dispatch_key`. Threads may call this at the same time."""
        chosen = str(parameters) if parameters is not None else "default"
        stored = f"{compiler_digest()}\n{self._target_text}\n{chosen}\n{key}"
        symbols = _symbols(dispatch)
        data = self.folder.get(stored) if self.folder else None
        if data is not None:
            cached = _decode(data, symbols, parameters)
            if cached is not None:
                return cached
        compiled = self.backend.compile_dispatch(
            dispatch, self.target, kernel_name(dispatch, f"{chosen}\n{key}"), parameters
        )
        if self.folder:
            self.folder.put(stored, _encode(compiled))
        return compiled

    def compile_all(
        self,
        dispatches: Mapping[str, Dispatch],
        choose: Choose,
        progress: Callable[[int, int], None] | None = None,
    ) -> dict[str, CompiledDispatch]:
        """Kernels of dispatches by `dispatch_key`, in the same order, on as many threads as there are CPUs.

        Raises the first error in the order of ``dispatches``; what has not begun then is left.
        """
        count = min(workers(), len(dispatches))
        if count <= 1:
            done = {}
            for number, (key, dispatch) in enumerate(dispatches.items()):
                done[key] = self.compile(dispatch, key, choose(key))
                if progress:
                    progress(number + 1, len(dispatches))
            return done
        with ThreadPoolExecutor(count, "mansard-compile") as pool:
            futures = {
                key: pool.submit(self.compile, dispatch, key, choose(key))
                for key, dispatch in dispatches.items()
            }
            done = {}
            try:
                for key, future in futures.items():
                    done[key] = future.result()
                    if progress:
                        progress(len(done), len(futures))
            finally:
                pool.shutdown(cancel_futures=True)
        return done


def workers() -> int:
    """Threads to compile with: one for every CPU this process may use."""
    return len(os.sched_getaffinity(0))


def distinct(dispatches: Sequence[Dispatch]) -> tuple[dict[str, Dispatch], dict[Dispatch, str]]:
    """The first dispatch of every identity by key, and the key of every dispatch."""
    key_of = {dispatch: dispatch_key(dispatch) for dispatch in dispatches}
    first: dict[str, Dispatch] = {}
    for dispatch, key in key_of.items():
        first.setdefault(key, dispatch)
    return first, key_of


def kernel_name(dispatch: Dispatch, identity: str) -> str:
    """A name that tells what the kernel is and which: the same in every model that has it."""
    stem = re.sub(r"_\d+$", "", dispatch.name)
    return f"{stem}_{hashlib.sha256(identity.encode()).hexdigest()[:12]}"


def _symbols(dispatch: Dispatch) -> dict[str, Dim]:
    used: list[DimLike] = [d for part in (dispatch, *dispatch.parts) for d in part.domain]
    values: list[Value] = [*dispatch.inputs, *dispatch.outputs]
    for op in dispatch.ops:
        values += [*op.inputs, *op.outputs]
        used += getattr(op, "extents", ())
    used += [d for value in values for d in value.type.shape]
    return {s.name: s for d in used if not isinstance(d, int) for s in d.symbols()}


def _encode(kernel: CompiledDispatch) -> bytes:
    (entry,) = kernel.spec.entries
    head = {
        "format": kernel.spec.format,
        "target": kernel.spec.target,
        "requires": kernel.spec.requires,
        "entry": dataclasses.asdict(entry),
        "params": [_text(d) for d in kernel.params],
        "grid": [_text(d) for d in kernel.grid],
        "packed": panels_to_data(kernel.packed),
    }
    return json.dumps(head).encode() + b"\n" + bytes(kernel.spec.code)


def _text(value: DimLike) -> int | str:
    return value if isinstance(value, int) else str(value)


def _decode(
    data: bytes, symbols: Mapping[str, Dim], parameters: Parameters | None
) -> CompiledDispatch | None:
    """The kernel, or None for data that does not fit: it is then compiled again."""
    text, _, code = data.partition(b"\n")
    try:
        head = json.loads(text)
        entry = EntryPoint(**{**head["entry"], "workgroup": tuple(head["entry"]["workgroup"])})
        spec = ExecutableSpec(head["format"], head["target"], code, (entry,), tuple(head["requires"]))
        x, y, z = (dims.parse(d, symbols) for d in head["grid"])
        params = tuple(dims.parse(d, symbols) for d in head["params"])
        packed = panels_from_data(head["packed"])
    except (ValueError, KeyError, TypeError, AttributeError, ArtifactError):
        return None
    return CompiledDispatch(spec, params, (x, y, z), packed, parameters)
