"""Decoders exported by transformers with a static cache: keys, values and their number are states."""

import pytest
import torch
import transformers
from transformers.integrations.executorch import TorchExportableModuleWithStaticCache

import mansard

CONTEXT = 16


def decoder(layers: int = 2) -> TorchExportableModuleWithStaticCache:
    torch.manual_seed(0)
    config = transformers.Qwen3Config(
        vocab_size=97, hidden_size=32, intermediate_size=48, num_hidden_layers=layers, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, max_position_embeddings=64,
    )  # fmt: skip
    module = transformers.Qwen3ForCausalLM(config).eval()
    module.generation_config = transformers.GenerationConfig(
        use_cache=True,
        cache_implementation="static",
        cache_config={"batch_size": 1, "max_cache_len": CONTEXT},
    )
    return TorchExportableModuleWithStaticCache(module)


@torch.no_grad()
def check(model: mansard.Model, layers: int, first: int) -> None:
    """A prompt of some tokens and single ones behind it, twice over."""
    reference, tokens = (
        decoder(layers),
        torch.randint(0, 97, (1, CONTEXT), generator=torch.Generator().manual_seed(1)),
    )
    for _ in range(2):
        for start, end in [(0, first), *((n, n + 1) for n in range(first, CONTEXT))]:
            inputs = {"input_ids": tokens[:, start:end], "cache_position": torch.tensor([start])}
            torch.testing.assert_close(model(**inputs), reference(**inputs), atol=2e-6, rtol=2e-6)


@pytest.mark.parametrize("device", ["cpu", pytest.param("vulkan", marks=pytest.mark.vulkan)])
def test_a_static_cache_of_transformers_decodes_as_it_does_there(device):
    """One program reads prompts of any length and decodes."""
    if device not in {i.id for i in mansard.devices() if i.supported}:
        pytest.skip(f"no device {device}")
    example = {"input_ids": torch.tensor([[1, 2, 3]]), "cache_position": torch.tensor([0])}
    shapes = {"input_ids": {1: mansard.Dim("S", 1, 8)}, "cache_position": None}
    with mansard.compile(decoder(), (), kwargs=example, dynamic_shapes=shapes, devices=device) as model:
        assert len(model.plan.states) == 3 * 2
        check(model, 2, 7)


def test_a_program_that_was_exported_before(tmp_path):
    example = {"input_ids": torch.tensor([[1]]), "cache_position": torch.tensor([0])}
    with torch.no_grad():
        program = torch.export.export(decoder(1), (), example, strict=False)
    torch.export.save(program, tmp_path / "decoder.pt2")
    with mansard.compile(tmp_path / "decoder.pt2", devices="cpu") as model:
        model.save(tmp_path / "decoder.mansard")
    with mansard.load(tmp_path / "decoder.mansard") as model:
        check(model, 1, 1)
