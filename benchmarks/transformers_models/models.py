"""Which architectures are tried, and how each is made small: random weights in shapes that take no time.

A configuration gets the small numbers of `SMALL` where it has fields of these names, and what `DETAILS` says
of it beyond them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import torch

FAMILIES: Mapping[str, str] = {
    "text encoders": """
        albert bert big_bird camembert canine convbert deberta deberta-v2 distilbert electra ernie esm
        fnet funnel ibert layoutlm layoutlmv3 longformer megatron-bert mobilebert modernbert mpnet
        nomic_bert nystromformer rembert roberta roformer squeezebert xlm xlm-roberta xlnet""",
    "decoders": """
        bamba biogpt bloom codegen cohere ctrl deepseek_v2 deepseek_v3 exaone4 falcon falcon_mamba gemma
        gemma2 gemma3_text glm4 gpt2 gpt_bigcode gpt_neo gpt_neox gpt_oss gptj granite granitemoe helium
        jamba lfm2 llama mamba mamba2 ministral mistral mixtral mpt nemotron olmo2 olmoe openai-gpt opt
        persimmon phi phi3 phimoe qwen2 qwen2_moe qwen3 qwen3_moe recurrent_gemma rwkv smollm3 stablelm
        starcoder2 xglm""",
    "encoders with decoders": """
        bart bigbird_pegasus blenderbot fsmt led longt5 m2m_100 marian mbart mt5 pegasus plbart
        prophetnet switch_transformers t5 umt5""",
    "images": """
        beit bit cvt data2vec-vision deit dinov2 dinov2_with_registers dinov3_vit dpt focalnet glpn
        hgnet_v2 hiera ijepa levit mobilenet_v1 mobilenet_v2 mobilevit poolformer pvt pvt_v2 regnet
        resnet segformer siglip_vision_model swin swinv2 timesformer videomae vit vit_mae
        vit_msn vitdet vivit yolos""",
    "images and texts": """
        altclip blip chinese_clip clip clipseg flava groupvit metaclip_2 owlv2 owlvit vilt""",
    "sounds": """
        audio-spectrogram-transformer data2vec-audio encodec hubert moonshine parakeet_encoder sew
        sew-d speech_to_text unispeech unispeech-sat wav2vec2 wav2vec2-bert wav2vec2-conformer wavlm
        whisper""",
}
KINDS = {kind: family for family, kinds in FAMILIES.items() for kind in kinds.split()}
"""Families by the name of an architecture (``model_type``)."""

SMALL: Mapping[str, Any] = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim", "embed_dim", "embedding_size"), 32),
    **dict.fromkeys(("num_hidden_layers", "n_layers", "n_layer", "num_layers"), 2),
    **dict.fromkeys(("encoder_layers", "decoder_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_heads", "n_head", "num_heads"), 4),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "d_ff", "n_inner"), 64),
    **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), 64),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), 4),
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank", "num_mel_bins"), 16),
    **dict.fromkeys(("d_kv", "head_dim", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"), 8),
    **dict.fromkeys(("max_source_positions", "max_target_positions", "image_size"), 64),
    "num_key_value_heads": 2, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "patch_size": 16,
    "vocab_size": 128, "max_position_embeddings": 128, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2, "decoder_start_token_id": 1, "use_cache": False,
}  # fmt: skip

DETAILS: Mapping[str, Mapping[str, Any]] = {
    "bamba": {"attn_layer_indices": [1], "mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 16},
    "codegen": {"rotary_dim": 8},
    "deepseek_v2": {"n_group": 1, "topk_group": 1, "first_k_dense_replace": 1, "num_key_value_heads": 4},
    "deepseek_v3": {"n_group": 1, "topk_group": 1, "first_k_dense_replace": 1, "num_key_value_heads": 4},
    "falcon_mamba": {"state_size": 8},
    "funnel": {"block_sizes": [1, 1, 1]},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "num_layers": 2},
    "gptj": {"rotary_dim": 8},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "mamba_d_state": 8, "mamba_dt_rank": 4},
    "layoutlmv3": {"input_size": 64, "coordinate_size": 6, "shape_size": 4},
    "mamba": {"state_size": 8},
    "mamba2": {"num_heads": 8, "head_dim": 8, "state_size": 16, "n_groups": 1},
    "recurrent_gemma": {"lru_width": 32, "num_key_value_heads": 1},
    "swin": {"embed_dim": 12, "depths": [1, 1], "num_heads": [3, 3], "window_size": 2, "patch_size": 4},
    "swinv2": {"embed_dim": 12, "depths": [1, 1], "num_heads": [3, 3], "window_size": 2, "patch_size": 4},
}
LARGEST = 60_000_000
"""Parameters of a model that is still tried."""
TOKENS, SAMPLES, FRAMES = 12, 4000, 64
"""The length of a text, of a sound, and of a spectrogram."""


class NotSmall(Exception):  # noqa: N818  # not an error of the program: what is wrong with a configuration
    """An architecture that these numbers do not make a small model of; the text says why."""


def build(kind: str) -> tuple[torch.nn.Module, dict[str, Any]]:
    """A model with its keyword inputs. Raises NotSmall where the configuration itself is refused."""
    import transformers

    torch.manual_seed(0)
    try:
        config = _config(transformers.CONFIG_MAPPING[kind], DETAILS.get(kind, {}))
        model = transformers.AutoModel.from_config(config).eval()
        inputs = _inputs(model, config)
        with torch.no_grad():
            model(**inputs)
    except Exception as error:
        raise NotSmall(f"{type(error).__name__}: {' '.join(str(error).split())[:200]}") from error
    if (count := sum(p.numel() for p in model.parameters())) > LARGEST:
        raise NotSmall(f"{count / 1e6:.0f} million parameters")
    return model, inputs


def _config(cls: Any, details: Mapping[str, Any]) -> Any:
    base = cls()
    names = set(base.to_dict()) | set(getattr(base, "attribute_map", {}))
    plain = {
        k: v for k, v in SMALL.items() if k in names and not isinstance(getattr(base, k, None), (list, tuple))
    }
    if "head_dim" not in details and not {"num_key_value_heads", "qk_rope_head_dim"} & names:
        plain.pop("head_dim", None)
    config = cls(**{**plain, **details})
    for part in getattr(cls, "sub_configs", {}):
        inner = getattr(config, part, None)
        for name, value in SMALL.items() if inner is not None else ():
            if name in inner.to_dict() and not isinstance(getattr(inner, name, None), (list, tuple)):
                with contextlib.suppress(Exception):
                    setattr(inner, name, value)
        _shorten(inner)
    _shorten(config)
    return config


def _shorten(config: Any) -> None:
    """As many types of layers as there are layers."""
    if config is not None and isinstance(getattr(config, "layer_types", None), list):
        with contextlib.suppress(AttributeError):  # computed from other fields
            config.layer_types = config.layer_types[: config.num_hidden_layers]


def _inputs(model: Any, config: Any) -> dict[str, Any]:
    import inspect

    names = inspect.signature(model.forward).parameters
    generator = torch.Generator().manual_seed(0)
    vision = getattr(config, "vision_config", None)
    size = getattr(config, "image_size", None) or getattr(vision, "image_size", None) or 64
    size = size[0] if isinstance(size, (list, tuple)) else size
    channels = getattr(config, "num_channels", 3) or 3
    inputs: dict[str, Any] = {}
    if "input_ids" in names:
        inputs["input_ids"] = torch.randint(3, 100, (2, TOKENS), generator=generator)
        if "attention_mask" in names:  # the second text is shorter
            inputs["attention_mask"] = torch.ones(2, TOKENS, dtype=torch.int64)
            inputs["attention_mask"][1, TOKENS - 3 :] = 0
    if "pixel_values" in names:
        frames = [config.num_frames] if hasattr(config, "num_frames") else []
        inputs["pixel_values"] = torch.randn(2, *frames, channels, size, size, generator=generator)
    if model.main_input_name == "input_values":
        inputs["input_values"] = torch.randn(2, *_sound(config), generator=generator)
    if model.main_input_name == "input_features":
        inputs["input_features"] = torch.randn(2, *_features(config), generator=generator)
    if "decoder_input_ids" in names:
        inputs["decoder_input_ids"] = torch.randint(3, 100, (2, 5), generator=generator)
    return inputs


def _sound(config: Any) -> tuple[int, ...]:
    """The shape of one sound: samples, samples of a channel, or a spectrogram over time."""
    if config.model_type == "audio-spectrogram-transformer":
        return config.max_length, config.num_mel_bins
    return (1, SAMPLES) if config.model_type == "encodec" else (SAMPLES,)


def _features(config: Any) -> tuple[int, int]:
    """The shape of one spectrogram: over time, but over frequencies first for Whisper and its like."""
    for name in ("input_feat_per_channel", "feature_projection_input_dim"):
        if hasattr(config, name):
            return FRAMES, getattr(config, name)
    if config.model_type == "parakeet_encoder":
        return FRAMES, config.num_mel_bins
    return config.num_mel_bins, 2 * config.max_source_positions
