"""The metadata of a GGUF file as a configuration of ``transformers``.

Keys are those of ``config.json``, values what the classes of ``transformers`` would compute with. What
llama.cpp fixes in its code rather than in the file (scales of attention, order of layers) is fixed here too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mansard.errors import ImportModelError
from mansard.formats.gguf_file import GgufFile
from mansard.formats.gguf_tokens import end_tokens
from mansard.frontends.decoders.checkpoint.gguf_rotary import llama3_scaling

Config = dict[str, Any]
_LAYER = re.compile(r"blk\.(\d{1,6})\.")
_GEMMA_27B_LAYERS = {"gemma2": 46, "gemma3": 62}
"""Gemma's largest models scale scores by the model's width per head, the others by the head's width."""


class _Metadata:
    """Values of one architecture, by their keys without the prefix."""

    def __init__(self, file: GgufFile, architecture: str) -> None:
        self.file, self.architecture = file, architecture
        self.layers = int(self.number("block_count"))
        there = {int(match[1]) for name in file.tensors if (match := _LAYER.match(name))}
        if there != set(range(len(there))) or len(there) != self.layers:
            raise ImportModelError(
                f"{file.path} has tensors of {len(there)} layers; {architecture}.block_count = {self.layers}"
            )

    def get(self, key: str, default: Any = None) -> Any:
        return self.file.metadata.get(f"{self.architecture}.{key}", default)

    def number(self, key: str, default: float | None = None) -> Any:
        """A positive number, which has to be there without a default; of a list of equal ones, that one."""
        value = self.get(key, default)
        if isinstance(value, list) and len(set(value)) == 1:
            value = value[0]
        if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
            raise ImportModelError(
                f"{self.file.path} has {self.architecture}.{key} = {value!r}; a positive number is needed"
            )
        return value

    def has(self, tensor: str) -> bool:
        return tensor in self.file.tensors

    @property
    def head_dim(self) -> int:
        return int(self.number("attention.key_length", self.number("embedding_length") // self.heads))

    @property
    def heads(self) -> int:
        return int(self.number("attention.head_count"))


def config_of(file: GgufFile, architecture: str) -> Config:
    """The configuration of a file of that architecture, one of `FAMILIES`.

    Raises ImportModelError that names the key that is missing or has no usable value.
    """
    metadata = _Metadata(file, architecture)
    if metadata.number("attention.value_length", metadata.head_dim) != metadata.head_dim:
        raise ImportModelError(f"{file.path}: values of another width than keys are not supported")
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise ImportModelError(f"{file.path} has no matrix token_embd.weight: it is not a language model")
    config: Config = {
        "vocab_size": embedding.shape[0],
        "hidden_size": metadata.number("embedding_length"),
        "intermediate_size": metadata.number("feed_forward_length"),
        "num_hidden_layers": metadata.layers,
        "num_attention_heads": metadata.heads,
        "head_dim": metadata.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": metadata.number("context_length"),
        "rms_norm_eps": metadata.number("attention.layer_norm_rms_epsilon"),
        "tie_word_embeddings": not metadata.has("output.weight"),
        "attention_bias": metadata.has("blk.0.attn_q.bias"),
        "mlp_bias": metadata.has("blk.0.ffn_gate.bias"),
        "sliding_window": None,
        **_tokens(file),
    }
    if not architecture.startswith("lfm2"):
        config["num_key_value_heads"] = metadata.number("attention.head_count_kv", metadata.heads)
    config["rope_parameters"] = _rotary(metadata)
    return {**config, **_FAMILIES[architecture](metadata, config)}


def _tokens(file: GgufFile) -> Config:
    ends = end_tokens(file.metadata)
    return {
        "bos_token_id": file.metadata.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": ends[0] if len(ends) == 1 else ends or None,
        "pad_token_id": file.metadata.get("tokenizer.ggml.padding_token_id"),
    }


def _rotary(metadata: _Metadata) -> Config:
    theta = float(metadata.number("rope.freq_base", 10000.0))
    rotated = metadata.number("rope.dimension_count", metadata.head_dim)
    parameters: Config = {"rope_type": "default", "rope_theta": theta}
    if rotated != metadata.head_dim:
        parameters["partial_rotary_factor"] = rotated / metadata.head_dim
    kind = metadata.get("rope.scaling.type", "none")
    if kind != "none":
        factor = metadata.number("rope.scaling.factor", metadata.number("rope.scale_linear", 1.0))
        parameters |= {"rope_type": str(kind), "factor": float(factor)}
        if original := metadata.get("rope.scaling.original_context_length"):
            parameters["original_max_position_embeddings"] = original
    if metadata.has("rope_freqs.weight"):
        factors = metadata.file.tensors["rope_freqs.weight"]
        parameters |= llama3_scaling(factors, theta, int(rotated), str(metadata.file.path))
    return parameters


def _llama(metadata: _Metadata, _: Config) -> Config:
    if metadata.get("expert_count", 0):
        return {"model_type": "mixtral", **_experts(metadata)}
    return {"model_type": "llama"}


def _experts(metadata: _Metadata) -> Config:
    count = metadata.number("expert_count")
    return {
        "num_experts": count,
        "num_local_experts": count,
        "num_experts_per_tok": metadata.number("expert_used_count"),
    }


def _qwen(model_type: str) -> Callable[[_Metadata, Config], Config]:
    return lambda metadata, _: {
        "model_type": model_type,
        "use_sliding_window": False,
        "layer_types": _layer_types([False] * metadata.layers),
    }


def _qwen3_moe(metadata: _Metadata, _: Config) -> Config:
    return {
        "model_type": "qwen3_moe",
        **_experts(metadata),
        "moe_intermediate_size": metadata.number("expert_feed_forward_length"),
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "use_sliding_window": False,
    }


def _granite(metadata: _Metadata, _: Config) -> Config:
    return {
        "model_type": "granite",
        "attention_multiplier": metadata.number("attention.scale", metadata.head_dim**-0.5),
        "embedding_multiplier": metadata.number("embedding_scale", 1.0),
        "residual_multiplier": metadata.number("residual_scale", 1.0),
        "logits_scaling": metadata.number("logit_scale", 1.0),
    }


def _granite_moe(metadata: _Metadata, config: Config) -> Config:
    result = {**_granite(metadata, config), **_experts(metadata), "model_type": "granitemoe"}
    if shared := metadata.get("expert_shared_feed_forward_length"):
        result |= {"model_type": "granitemoeshared", "shared_intermediate_size": shared}
    return result


def _gemma(_: _Metadata, __: Config) -> Config:
    return {
        "model_type": "gemma",
        "hidden_act": "gelu_pytorch_tanh",
        "hidden_activation": "gelu_pytorch_tanh",
    }


def _gemma2(metadata: _Metadata, config: Config) -> Config:
    wide = metadata.layers == _GEMMA_27B_LAYERS.get(metadata.architecture)
    return {
        **_gemma(metadata, config),
        "model_type": "gemma2",
        "query_pre_attn_scalar": config["hidden_size"] // metadata.heads if wide else metadata.head_dim,
        "attn_logit_softcapping": metadata.get("attn_logit_softcapping"),
        "final_logit_softcapping": metadata.get("final_logit_softcapping"),
        "sliding_window": metadata.number("attention.sliding_window", 4096),
        "layer_types": _layer_types([(layer + 1) % 2 != 0 for layer in range(metadata.layers)]),
    }


def _gemma3(metadata: _Metadata, config: Config) -> Config:
    window = metadata.get("attention.sliding_window")
    pattern = metadata.get("attention.sliding_window_pattern", 6)
    if isinstance(pattern, int):
        pattern = [(layer + 1) % pattern != 0 for layer in range(metadata.layers)]
    local = {"rope_type": "default", "rope_theta": float(metadata.number("rope.freq_base_swa", 10000.0))}
    return {
        **_gemma2(metadata, config),
        "model_type": "gemma3_text",
        "sliding_window": window,
        "layer_types": _layer_types([bool(window) and bool(slides) for slides in pattern]),
        "rope_parameters": {"full_attention": config["rope_parameters"], "sliding_attention": local},
    }


def _layer_types(sliding: Sequence[bool]) -> list[str]:
    return ["sliding_attention" if slides else "full_attention" for slides in sliding]


def _lfm2(metadata: _Metadata, config: Config) -> Config:
    key_heads = metadata.get("attention.head_count_kv")
    if not isinstance(key_heads, list) or len(key_heads) != metadata.layers or not any(key_heads):
        raise ImportModelError(
            f"{metadata.file.path} has {metadata.architecture}.attention.head_count_kv = {key_heads!r}; "
            f"a number for each of the {metadata.layers} layers is needed, 0 for convolutions"
        )
    return {
        "model_type": "lfm2",
        "num_key_value_heads": max(key_heads),
        "layer_types": ["full_attention" if count else "conv" for count in key_heads],
        "norm_eps": config["rms_norm_eps"],
        "conv_L_cache": metadata.number("shortconv.l_cache"),
        "conv_bias": any(name.endswith("shortconv.conv.bias") for name in metadata.file.tensors),
        "block_auto_adjust_ff_dim": False,
    }


def _lfm2_moe(metadata: _Metadata, config: Config) -> Config:
    return {
        **_lfm2(metadata, config),
        **_experts(metadata),
        "model_type": "lfm2_moe",
        "moe_intermediate_size": metadata.number("expert_feed_forward_length"),
        "num_dense_layers": metadata.get("leading_dense_block_count", 0),
        "norm_topk_prob": True,
        "use_expert_bias": any(".exp_probs_b" in name for name in metadata.file.tensors),
        "routed_scaling_factor": metadata.get("expert_weights_scale", 1.0) or 1.0,
    }


_FAMILIES: Mapping[str, Callable[[_Metadata, Config], Config]] = {
    "llama": _llama,
    "qwen2": _qwen("qwen2"),
    "qwen3": _qwen("qwen3"),
    "qwen3moe": _qwen3_moe,
    "granite": _granite,
    "granitemoe": _granite_moe,
    "gemma": _gemma,
    "gemma2": _gemma2,
    "gemma3": _gemma3,
    "lfm2": _lfm2,
    "lfm2moe": _lfm2_moe,
}
