"""From GGUF's tensors to those of the implementations in ``transformers``, per architecture.

llama.cpp's converter renames tensors, splits merged ones and changes some values; `GgufSource` says how each
tensor of ``transformers`` comes back.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from mansard.errors import ImportModelError

_MODEL = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_ATTENTION = {
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm",
    "attn_norm": "input_layernorm",
}  # fmt: skip
_MLP = {"ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
_LAYER = {**_ATTENTION, **_MLP, "ffn_norm": "post_attention_layernorm", "ffn_gate_inp": "mlp.gate"}
_GEMMA = {
    **_LAYER, "post_attention_norm": "post_attention_layernorm", "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}  # fmt: skip
_LFM2_MODEL = {**_MODEL, "token_embd_norm": "model.embedding_norm", "output_norm": "model.embedding_norm"}
_LFM2 = {
    **_ATTENTION, "attn_norm": "operator_norm", "attn_output": "self_attn.out_proj", "ffn_norm": "ffn_norm",
    "attn_q_norm": "self_attn.q_layernorm", "attn_k_norm": "self_attn.k_layernorm",
    "shortconv.conv": "conv.conv", "shortconv.in_proj": "conv.in_proj", "shortconv.out_proj": "conv.out_proj",
    "ffn_gate": "feed_forward.w1", "ffn_up": "feed_forward.w3", "ffn_down": "feed_forward.w2",
    "ffn_gate_inp": "feed_forward.gate",
}  # fmt: skip
_WITHOUT_WEIGHTS = frozenset({"rope_freqs", "attn_rot_embd"})
"""Tensors of the rotation, which is part of the configuration."""
_NAME = re.compile(r"(?:blk\.(\d+)\.)?(.+?)(?:\.(weight|bias))?")


@dataclass(frozen=True)
class GgufSource:
    """The tensors of a GGUF file that make one of ``transformers``: ``parts``, joined along their rows.

    With ``heads``, the rows of each of so many heads are in llama.cpp's order, (dim / 2, 2) instead of
    (2, dim / 2). ``shift`` was added to every element. ``unsqueezed``: (C, L) stands for (C, 1, L).
    """

    parts: tuple[str, ...]
    heads: int | None = None
    shift: float = 0.0
    unsqueezed: bool = False


@dataclass(frozen=True)
class GgufFamily:
    """How an architecture's tensors are named; ``experts`` is the module that holds experts."""

    layer: Mapping[str, str]
    model: Mapping[str, str] = field(default_factory=lambda: _MODEL)
    experts: str = "mlp"
    permuted: bool = False
    """Whether the rows of queries and keys are in the order that llama.cpp rotates."""
    shifted_norms: bool = False
    """Whether the file's norm weights are larger by one."""


FAMILIES: Mapping[str, GgufFamily] = {
    "llama": GgufFamily(_LAYER, permuted=True),
    "qwen2": GgufFamily(_LAYER),
    "qwen3": GgufFamily(_LAYER),
    "qwen3moe": GgufFamily(_LAYER),
    "granite": GgufFamily(_LAYER, permuted=True),
    "granitemoe": GgufFamily(
        {**_LAYER, "ffn_gate_inp": "block_sparse_moe.router", "ffn_down_shexp": "shared_mlp.output_linear"},
        experts="block_sparse_moe",
        permuted=True,
    ),
    "gemma": GgufFamily(_LAYER, shifted_norms=True),
    "gemma2": GgufFamily(_GEMMA, shifted_norms=True),
    "gemma3": GgufFamily(_GEMMA, shifted_norms=True),
    "lfm2": GgufFamily(_LFM2, _LFM2_MODEL),
    "lfm2moe": GgufFamily(_LFM2, _LFM2_MODEL, experts="feed_forward"),
}
"""By ``general.architecture``."""


def sources_of(
    family: GgufFamily, tensors: Iterable[str], heads: int, key_heads: int
) -> dict[str, GgufSource]:
    """Every tensor of ``transformers`` that the GGUF tensors of these names make.

    Raises ImportModelError for a tensor that the family does not have: the model would not be what the
    architecture says.
    """
    result: dict[str, GgufSource] = {}
    for name in sorted(tensors):
        match = _NAME.fullmatch(name)
        assert match is not None  # it takes any text
        layer, base, suffix = match.groups()
        if base in _WITHOUT_WEIGHTS:
            continue
        target, source = _target(family, base, suffix, layer is not None), GgufSource((name,))
        if target is None:
            raise ImportModelError(
                f"the GGUF file has a tensor {name!r}, which its architecture does not know"
            )
        if family.permuted and base in ("attn_q", "attn_k"):
            source = replace(source, heads=heads if base == "attn_q" else key_heads)
        if family.shifted_norms and base.endswith("norm"):
            source = replace(source, shift=1.0)
        if (base, suffix) == ("shortconv.conv", "weight"):
            source = replace(source, unsqueezed=True)
        target = target if layer is None else f"model.layers.{layer}.{target}"
        if target in result and base in ("ffn_up_exps", "ffn_up_shexp"):  # the gate sorts before it
            source = replace(result[target], parts=(*result[target].parts, name))
        elif target in result:
            raise ImportModelError(
                f"the GGUF file has {name!r} and {result[target].parts[0]!r}, which are the same"
            )
        result[target] = source
    return result


def _target(family: GgufFamily, base: str, suffix: str | None, in_layer: bool) -> str | None:
    """The name in ``transformers``, within its layer; None for an unknown one."""
    if not in_layer:
        return f"{family.model[base]}.{suffix}" if base in family.model else None
    if base in ("ffn_gate_exps", "ffn_up_exps", "ffn_gate_up_exps"):
        return f"{family.experts}.experts.gate_up_proj"
    if base == "ffn_down_exps":
        return f"{family.experts}.experts.down_proj"
    if base in ("ffn_gate_shexp", "ffn_up_shexp") and "ffn_down_shexp" in family.layer:
        return f"shared_mlp.input_linear.{suffix}"
    if base == "exp_probs_b":
        return f"{family.experts}.expert_bias"
    return f"{family.layer[base]}.{suffix}" if base in family.layer else None
