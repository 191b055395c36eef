"""llama.cpp through llama-cpp-python, for the decoder alone; its cache of keys and values is its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness.cases import CACHED, Case
from benchmarks.harness.gguf_file import write_gguf
from benchmarks.harness.peers.base import Call, Peer


class LlamaCpp(Peer):
    name = "llama.cpp"
    packages = ("llama-cpp-python", "gguf")
    own_environment = True

    def refusal(self, case: Case) -> str | None:
        return None if case.network == "qwen" else "it runs language models only"

    def imports(self) -> None:
        import llama_cpp  # noqa: F401

    def build(self, case: Case, module: Any, args: tuple[Any, ...], place: Path) -> None:
        config = module.module.config
        settings = {**config.to_dict(), "rope_theta": config.rope_parameters["rope_theta"]}
        tensors = ((name, tensor.float().numpy()) for name, tensor in module.module.state_dict().items())
        kind = {"float32": "F32", "bfloat16": "BF16"}[case.dtype]
        write_gguf(place / "model.gguf", settings, tensors, kind)

    def files(self, case: Case, place: Path, work: Path) -> list[Path]:
        return [place / "model.gguf"]

    def load(self, case: Case, place: Path, work: Path, arrays: list[np.ndarray], threads: int) -> Call:
        from llama_cpp import Llama

        model = Llama(
            str(place / "model.gguf"),
            n_ctx=2 * CACHED,
            n_batch=2 * CACHED,
            n_threads=threads,
            n_threads_batch=threads,
            logits_all=False,
            verbose=False,
        )
        past = 0
        if case.entry == "decode":
            past = CACHED
            model.eval(np.load(work / case.network / "prompt.npy")[0].tolist())
        tokens = arrays[0][0].tolist()

        def call() -> np.ndarray:
            model.n_tokens = past  # the tokens after this place are computed again
            model.eval(tokens)
            logits = np.ctypeslib.as_array(model._ctx.get_logits(), (model.n_vocab(),))
            return logits.reshape(1, 1, -1)

        return call
