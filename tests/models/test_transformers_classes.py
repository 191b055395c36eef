"""Models of ``transformers`` are called as before once compiled, and return what they returned."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch

import mansard

transformers = pytest.importorskip("transformers")

SMALL = {"num_hidden_layers": 1, "hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64}
TEXT = {**SMALL, "vocab_size": 64, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
GROUPED = {**TEXT, "num_key_value_heads": 2, "head_dim": 16}
ViT = {**SMALL, "image_size": 32, "patch_size": 8}
TOKENS = torch.arange(5, 19).reshape(2, 7)
IMAGE = torch.linspace(0, 1, 3 * 32 * 32).reshape(1, 3, 32, 32)
Case = Callable[[], tuple[torch.nn.Module, dict[str, Any]]]


def _case(cls: str, config: str, arguments: Mapping[str, Any], /, **options: Any) -> Case:
    def build() -> tuple[torch.nn.Module, dict[str, Any]]:
        torch.manual_seed(0)
        module = getattr(transformers, cls)(getattr(transformers, config)(**options))
        return module.eval(), dict(arguments)

    return build


MASKED = {"input_ids": TOKENS, "attention_mask": torch.ones_like(TOKENS)}
WHISPER = {
    "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 2,
    "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "num_mel_bins": 8, "max_source_positions": 10,
    "d_model": 32, "vocab_size": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    "decoder_start_token_id": 1,
}  # fmt: skip
SEGFORMER = {
    "depths": [1] * 4, "hidden_sizes": [8, 8, 16, 16], "num_attention_heads": [1] * 4,
    "decoder_hidden_size": 16,
}  # fmt: skip
CASES: dict[str, Case] = {
    "BertModel": _case("BertModel", "BertConfig", MASKED, **TEXT),
    "LlamaForCausalLM": _case("LlamaForCausalLM", "LlamaConfig", {"input_ids": TOKENS}, **GROUPED),
    "T5ForConditionalGeneration": _case(
        "T5ForConditionalGeneration", "T5Config", {"input_ids": TOKENS, "decoder_input_ids": TOKENS[:, :3]},
        d_model=32, d_kv=16, d_ff=64, num_layers=1, num_heads=2, vocab_size=64,
    ),
}  # fmt: skip
MORE_CASES: dict[str, Case] = {
    "BertForSequenceClassification": _case(
        "BertForSequenceClassification", "BertConfig", {"input_ids": TOKENS}, **TEXT
    ),
    "RobertaForMaskedLM": _case("RobertaForMaskedLM", "RobertaConfig", MASKED, **TEXT),
    "DistilBertForTokenClassification": _case(
        "DistilBertForTokenClassification", "DistilBertConfig", {"input_ids": TOKENS},
        n_layers=1, dim=32, n_heads=2, hidden_dim=64, vocab_size=64,
    ),
    "MobileBertModel": _case(
        "MobileBertModel", "MobileBertConfig", {"input_ids": TOKENS},
        **TEXT, embedding_size=16, intra_bottleneck_size=16, true_hidden_size=16,
    ),
    "Qwen3ForCausalLM": _case(
        "Qwen3ForCausalLM", "Qwen3Config", {"input_ids": TOKENS, "use_cache": False}, **GROUPED
    ),
    "MixtralForCausalLM": _case(
        "MixtralForCausalLM", "MixtralConfig", {"input_ids": TOKENS, "use_cache": False},
        **GROUPED, num_local_experts=4, num_experts_per_tok=2,
    ),
    "Gemma3ForCausalLM": _case(
        "Gemma3ForCausalLM", "Gemma3TextConfig", {"input_ids": TOKENS},
        **{**GROUPED, "num_hidden_layers": 2}, sliding_window=4,
        layer_types=["sliding_attention", "full_attention"],
    ),
    "GPT2LMHeadModel": _case(
        "GPT2LMHeadModel", "GPT2Config", {"input_ids": TOKENS},
        n_layer=1, n_embd=32, n_head=2, vocab_size=64, bos_token_id=1, eos_token_id=2,
    ),
    "ViTForImageClassification": _case(
        "ViTForImageClassification", "ViTConfig", {"pixel_values": IMAGE}, **ViT
    ),
    "YolosForObjectDetection": _case(
        "YolosForObjectDetection", "YolosConfig", {"pixel_values": IMAGE},
        **{**ViT, "image_size": [32, 32]}, num_detection_tokens=4,
    ),
    "CLIPModel": _case(
        "CLIPModel", "CLIPConfig", {"input_ids": TOKENS, "pixel_values": IMAGE},
        text_config={**TEXT, "max_position_embeddings": 16}, vision_config=ViT, projection_dim=16,
    ),
    "ResNetForImageClassification": _case(
        "ResNetForImageClassification", "ResNetConfig", {"pixel_values": IMAGE},
        embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1],
    ),
    "SegformerForSemanticSegmentation": _case(
        "SegformerForSemanticSegmentation", "SegformerConfig", {"pixel_values": IMAGE}, **SEGFORMER
    ),
    "WhisperModel": _case(
        "WhisperModel", "WhisperConfig",
        {"input_features": torch.linspace(0, 1, 160).reshape(1, 8, 20), "decoder_input_ids": TOKENS[:1, :3]},
        **WHISPER,
    ),
}  # fmt: skip


def assert_same(actual: Any, expected: Any, path: str = "result") -> None:
    """Equal classes, keys and numbers; tensors within 1e-4 of the largest element."""
    if isinstance(expected, torch.Tensor):
        assert actual.dtype == expected.dtype and actual.shape == expected.shape, path
        largest = max(1.0, expected.abs().max().item())
        assert torch.allclose(actual, expected, rtol=0, atol=1e-4 * largest), path
        return
    assert type(actual) is type(expected), path
    if isinstance(expected, dict):
        assert list(actual) == list(expected), path
        for key, item in expected.items():
            assert_same(actual[key], item, f"{path}.{key}")
    elif isinstance(expected, (tuple, list)):
        assert len(actual) == len(expected), path
        for number, (a, b) in enumerate(zip(actual, expected, strict=True)):
            assert_same(a, b, f"{path}[{number}]")
    elif isinstance(expected, transformers.EncoderDecoderCache):
        for name in ("self_attention_cache", "cross_attention_cache"):
            assert_same(getattr(actual, name), getattr(expected, name), f"{path}.{name}")
    elif isinstance(expected, transformers.DynamicCache):
        for number, (a, b) in enumerate(zip(actual.layers, expected.layers, strict=True)):
            assert type(a) is type(b), path
            # Of a window that is full nobody says how many positions it has seen.
            assert a.get_seq_length() == b.get_seq_length() or (a.is_sliding and a.get_seq_length() is None)
            assert_same((a.keys, a.values), (b.keys, b.values), f"{path}.layers[{number}]")
    else:
        assert actual == expected, path


def _check(case: Case) -> None:
    module, arguments = case()
    with mansard.compile(module, kwargs=arguments, devices="cpu", cache=False) as model:
        actual = model(**arguments)
    with torch.no_grad():
        assert_same(actual, module(**arguments))


@pytest.mark.parametrize("name", CASES)
def test_models_return_what_their_modules_return(name: str) -> None:
    _check(CASES[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", MORE_CASES)
def test_more_models_return_what_their_modules_return(name: str) -> None:
    _check(MORE_CASES[name])
