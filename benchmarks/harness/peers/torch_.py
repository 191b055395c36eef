"""PyTorch, eager and compiled by TorchInductor with frozen weights."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness.cases import Case, first
from benchmarks.harness.peers.base import Call, Peer


class TorchEager(Peer):
    name = "torch-eager"
    packages = ("torch", "transformers")
    builds = False

    def imports(self) -> None:
        import harness.networks  # noqa: F401
        from transformers import (  # noqa: F401  # transformers imports a class when it is named
            BertModel,
            MobileNetV2ForImageClassification,
            MobileNetV2ForSemanticSegmentation,
            Qwen3ForCausalLM,
            ResNetForImageClassification,
        )

    def files(self, case: Case, place: Path, work: Path) -> list[Path]:
        return [case.weights(work)]

    def load(self, case: Case, place: Path, work: Path, arrays: list[np.ndarray], threads: int) -> Call:
        import torch

        from benchmarks.harness import networks

        torch.set_grad_enabled(False)
        torch.set_num_threads(threads)
        call = self.prepare(networks.entry(case, work))
        args = networks.tensors(case, arrays)
        return lambda: first(call(*args)).float().numpy()

    def prepare(self, module: Any) -> Any:
        return module


class TorchCompile(TorchEager):
    """The build step is a first call with an empty cache of generated code; later processes find it full."""

    name = "torch-compile"
    builds = True
    cache_variable = "TORCHINDUCTOR_CACHE_DIR"

    def imports(self) -> None:
        # Its worker processes would still be at work, on the same cores, while calls are timed.
        os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
        super().imports()
        import torch._dynamo
        import torch._inductor.compile_fx  # noqa: F401  # part of the framework, not of the model's memory

    def prepare(self, module: Any) -> Any:
        import torch
        import torch._inductor.config

        torch._inductor.config.freezing = True
        return torch.compile(module)

    def build(self, case: Case, module: Any, args: tuple[Any, ...], place: Path) -> None:
        import torch

        with torch.no_grad():
            self.prepare(module)(*args)
