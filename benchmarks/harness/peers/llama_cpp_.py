"""llama.cpp through llama-cpp-python, for the decoder alone; its cache of keys and values is its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness.cases import CACHED, Case
from benchmarks.harness.peers.base import Call, Peer

# The parts of a transformers parameter name and what GGUF calls them, applied in this order.
_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.o_proj": "attn_output",
    "self_attn.": "attn_",
    "mlp.": "ffn_",
    "_proj": "",
    "model.layers.": "blk.",
}


class LlamaCpp(Peer):
    name = "llama.cpp"
    packages = ("llama-cpp-python", "gguf")
    own_environment = True

    def refusal(self, case: Case) -> str | None:
        return None if case.network == "qwen" else "it runs language models only"

    def imports(self) -> None:
        import llama_cpp  # noqa: F401

    def build(self, case: Case, module: Any, args: tuple[Any, ...], place: Path) -> None:
        import gguf

        config = module.module.config
        kind = {"float32": "F32", "bfloat16": "BF16"}[case.dtype]
        writer = gguf.GGUFWriter(place / "model.gguf", "qwen3")
        writer.add_block_count(config.num_hidden_layers)
        writer.add_context_length(config.max_position_embeddings)
        writer.add_embedding_length(config.hidden_size)
        writer.add_feed_forward_length(config.intermediate_size)
        writer.add_head_count(config.num_attention_heads)
        writer.add_head_count_kv(config.num_key_value_heads)
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
        writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
        writer.add_vocab_size(config.vocab_size)
        writer.add_tokenizer_model("none")
        for name, tensor in module.module.state_dict().items():
            if not name.endswith("weight") or name == "lm_head.weight":  # tied to the embedding
                continue
            for old, new in _NAMES.items():
                name = name.replace(old, new)
            values = tensor.float().numpy()
            stored = gguf.GGMLQuantizationType[kind if values.ndim == 2 else "F32"]
            writer.add_tensor(name, gguf.quants.quantize(values, stored), raw_dtype=stored)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()

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
