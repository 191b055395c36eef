"""ExecuTorch with the XNNPACK delegate, called from Python (which needs torch for its tensors)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness.cases import Case
from benchmarks.harness.peers.base import Call, Peer, export


class ExecuTorchXnnpack(Peer):
    name = "executorch-xnnpack"
    packages = ("executorch", "torch")
    own_environment = True

    def imports(self) -> None:
        import torch  # noqa: F401
        from executorch.runtime import Runtime  # noqa: F401

    def build(self, case: Case, module: Any, args: tuple[Any, ...], place: Path) -> None:
        from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
        from executorch.exir import to_edge_transform_and_lower

        lowered = to_edge_transform_and_lower(export(module, args), partitioner=[XnnpackPartitioner()])
        with (place / "model.pte").open("wb") as file:
            lowered.to_executorch().write_to_file(file)

    def files(self, case: Case, place: Path, work: Path) -> list[Path]:
        return [place / "model.pte"]

    def load(self, case: Case, place: Path, work: Path, arrays: list[np.ndarray], threads: int) -> Call:
        import torch
        from executorch.extension.pybindings import portable_lib
        from executorch.runtime import Runtime

        portable_lib._unsafe_reset_threadpool(threads)
        method = Runtime.get().load_program(str(place / "model.pte")).load_method("forward")
        dtype = getattr(torch, case.dtype)
        given = [torch.from_numpy(array) for array in arrays]
        args = tuple(t.to(dtype) if t.is_floating_point() else t for t in given)
        return lambda: method.execute(args)[0].float().numpy()
