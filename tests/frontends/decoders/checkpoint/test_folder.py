"""Hugging Face folders that transformers and safetensors wrote, and folders that lack something."""

from __future__ import annotations

import json
import shutil

import ml_dtypes
import numpy as np
import pytest
import torch
import transformers
from safetensors.numpy import load_file, save_file
from support.resident_memory import anonymous_memory

from mansard.dtypes import DType
from mansard.errors import ImportModelError
from mansard.frontends.decoders.checkpoint import open_checkpoint

SMALL = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 64,
}  # fmt: skip
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 24}
MODELS = {
    "qwen3": transformers.Qwen3Config(**SMALL, head_dim=8),
    "llama": transformers.LlamaConfig(**SMALL),
    "gemma3": transformers.Gemma3TextConfig(**SMALL, head_dim=8),
    "qwen3_moe": transformers.Qwen3MoeConfig(**SMALL, **EXPERTS, num_experts=3, head_dim=8),
    "granitemoe": transformers.GraniteMoeConfig(**SMALL, num_local_experts=3, num_experts_per_tok=2),
    "lfm2_moe": transformers.Lfm2MoeConfig(
        **SMALL, **EXPERTS, num_experts=3, num_dense_layers=1, layer_types=["conv", "full_attention"]
    ),
}


def save(name, folder, **options):
    torch.manual_seed(1)
    model = transformers.AutoModelForCausalLM.from_config(MODELS[name])
    model.save_pretrained(folder, **options)
    return model


def as_array(tensor):
    if tensor.dtype == torch.bfloat16:
        return tensor.contiguous().view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.detach().numpy()


@pytest.fixture
def folder(tmp_path):
    """A small folder that needs no model: three tensors in one file."""
    tensors = {
        "model.embed_tokens.weight": np.arange(12, dtype=np.float32).reshape(4, 3),
        "model.norm.weight": np.ones(3, ml_dtypes.bfloat16),
        "counts": np.arange(3, dtype=np.complex64),
    }
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "eos_token_id": 2}))
    return tmp_path


def shard(folder, **files):
    """Spread the tensors of the folder over files: keyword a name, value the tensors' names."""
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    for file, names in files.items():
        save_file({name: tensors[name] for name in names}, folder / f"{file}.safetensors")
    where = {name: f"{file}.safetensors" for file, names in files.items() for name in names}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))


@pytest.mark.parametrize("name", MODELS)
def test_tensors_are_those_of_the_implementation(name, tmp_path):
    model = save(name, tmp_path)
    tied = {"lm_head.weight"} if model.config.tie_word_embeddings else set()
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.names == model.state_dict().keys() - tied
    for key in checkpoint.names:
        constant, wanted = checkpoint.constant(key), as_array(model.state_dict()[key])
        assert (constant.key, checkpoint.tensor_type(key).shape) == (key, wanted.shape)
        np.testing.assert_array_equal(constant.load(), wanted)
    assert checkpoint.config["model_type"] == model.config.model_type
    assert checkpoint.config["hidden_size"] == 32


def test_shards_and_bf16(tmp_path):
    model = transformers.AutoModelForCausalLM.from_config(MODELS["qwen3"]).to(torch.bfloat16)
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    checkpoint = open_checkpoint(tmp_path)
    for key, wanted in model.state_dict().items():
        assert checkpoint.tensor_type(key).dtype is DType.BF16
        np.testing.assert_array_equal(checkpoint.constant(key).load(), as_array(wanted))


def test_tensors_are_views_of_the_file(folder):
    checkpoint = open_checkpoint(folder)
    constant = checkpoint.constant("model.embed_tokens.weight")
    assert checkpoint.constant("model.embed_tokens.weight") is constant  # what is known of it is known once
    first, second = constant.load(), constant.load()
    assert np.shares_memory(first, second)
    assert not first.flags.owndata
    checkpoint.close()
    assert first[3, 2] == 11  # what was loaded stays
    with pytest.raises(ImportModelError, match="is closed"):
        constant.load()


def test_floating_point_in_a_chosen_type(folder):
    save_file({"a": np.ones(2, np.float32), "b": np.ones(2, np.int32)}, folder / "model.safetensors")
    checkpoint = open_checkpoint(folder, DType.BF16)
    assert (checkpoint.tensor_type("a").dtype, checkpoint.tensor_type("b").dtype) == (DType.BF16, DType.I32)
    assert checkpoint.constant("a").load().dtype == ml_dtypes.bfloat16
    assert checkpoint.constant("b").load().dtype == np.int32


@pytest.mark.resident_memory
def test_weights_that_were_read_are_pages_of_the_file(folder):
    save_file({f"w{i}": np.ones((1024, 2048), np.float32) for i in range(4)}, folder / "model.safetensors")
    checkpoint = open_checkpoint(folder)
    before = anonymous_memory()
    assert sum(float(checkpoint.constant(name).load().sum()) for name in checkpoint.names) == 4 * 2**21
    assert anonymous_memory() - before < 4 * 2**20


def test_nothing_is_quantised(folder):
    assert open_checkpoint(folder).quantised("model.norm.weight") is None


def test_generation_decides_which_tokens_end(folder):
    (folder / "generation_config.json").write_text('{"eos_token_id": [5, 7], "temperature": 0.6}')
    checkpoint = open_checkpoint(folder)
    assert checkpoint.config["eos_token_id"] == [5, 7]
    assert checkpoint.generation["temperature"] == 0.6
    (folder / "generation_config.json").unlink()
    checkpoint = open_checkpoint(folder)
    assert (checkpoint.config["eos_token_id"], checkpoint.generation) == (2, {})


def test_the_text_part_of_a_model_of_several_modalities(folder):
    save_file(
        {
            "language_model.model.norm.weight": np.zeros(3, np.float32),
            "language_model.lm_head.weight": np.zeros((4, 3), np.float32),
            "vision_tower.patch.weight": np.zeros(1, np.float32),
        },
        folder / "model.safetensors",
    )
    text = {"model_type": "gemma3_text", "hidden_size": 3}
    config = {"model_type": "gemma3", "eos_token_id": [1, 106], "text_config": text}
    (folder / "config.json").write_text(json.dumps(config))
    checkpoint = open_checkpoint(folder)
    assert checkpoint.config == {**text, "eos_token_id": [1, 106]}
    assert {"model.norm.weight", "lm_head.weight"} < checkpoint.names


def test_both_names_of_the_number_of_experts(folder):
    (folder / "config.json").write_text('{"model_type": "qwen3_moe", "num_experts": 8}')
    assert open_checkpoint(folder).config["num_local_experts"] == 8


def test_a_missing_tensor_names_the_nearest(folder):
    checkpoint = open_checkpoint(folder)
    for ask in (checkpoint.tensor_type, checkpoint.constant, checkpoint.quantised):
        with pytest.raises(
            ImportModelError, match=r"no tensor 'model.norm.bias'; the nearest are model.norm.w"
        ):
            ask("model.norm.bias")


def test_an_element_type_that_is_not_supported(folder):
    with pytest.raises(ImportModelError, match=r"'counts' of .* has element type C64, which is not"):
        open_checkpoint(folder).constant("counts")


def test_a_missing_and_a_different_expert(folder):
    expert = "model.layers.0.mlp.experts.{}.{}_proj.weight"
    tensors = {
        expert.format(e, p): np.zeros((2, 3), np.float32) for e in (0, 1) for p in ("gate", "up", "down")
    }
    tensors[expert.format(1, "up")] = np.zeros((3, 3), np.float32)
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(
        ImportModelError, match=r"experts of .* differ: .*experts.1.up_proj.weight is F32\[3, 3\]"
    ):
        open_checkpoint(folder).tensor_type("model.layers.0.mlp.experts.gate_up_proj")
    del tensors[expert.format(1, "up")]
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(ImportModelError, match=r"has no tensor model.layers.0.mlp.experts.1.up_proj.weight"):
        open_checkpoint(folder)


def write_config(text):
    return lambda folder: (folder / "config.json").write_text(text)


def pickles_only(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def two_files(folder):
    shutil.copy(folder / "model.safetensors", folder / "more.safetensors")
    (folder / "model.safetensors").rename(folder / "weights.safetensors")


def cut(folder):
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(content[:-4])


def lost_shard(folder):
    shard(folder, a=["counts"], b=["model.norm.weight"])
    (folder / "b.safetensors").unlink()


def wrong_shard(folder):
    shard(folder, a=["counts"], b=["model.norm.weight"])
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"counts": "b.safetensors"}}')


def shard_outside(folder):
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"counts": "../b.safetensors"}}')


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda folder: (folder / "config.json").unlink(), "has no config.json"),
        (write_config("{"), r"config.json cannot be read"),
        (write_config("[]"), r"config.json is not a JSON object"),
        (write_config("{}"), "config.json has no model_type"),
        (
            lambda folder: (folder / "generation_config.json").write_text("?"),
            "generation_config.json cannot be",
        ),
        (lambda folder: (folder / "model.safetensors").unlink(), "has no weights: neither model.safetensors"),
        (pickles_only, "weights only in pytorch_model.bin; safetensors are needed"),
        (two_files, "has 2 safetensors files and no model.safetensors.index.json"),
        (cut, "is truncated: tensor 'model.norm.weight'"),
        (lost_shard, "names the shard b.safetensors, which is missing"),
        (wrong_shard, "says that b.safetensors holds 'counts', which it does not"),
        (shard_outside, "names '../b.safetensors', which is not a file of the folder"),
        (
            lambda f: (f / "model.safetensors.index.json").write_text("{}"),
            "is not an index of safetensors shards",
        ),
    ],
)
def test_what_is_wrong_with_a_folder_is_said(folder, spoil, message):
    spoil(folder)
    with pytest.raises(ImportModelError, match=message):
        open_checkpoint(folder)


def test_what_is_no_folder(tmp_path):
    with pytest.raises(ImportModelError, match="there is no folder or file"):
        open_checkpoint(tmp_path / "none")
    (tmp_path / "file.txt").write_text("text")
    with pytest.raises(ImportModelError, match=r"is neither a folder with a config.json nor a GGUF file"):
        open_checkpoint(tmp_path / "file.txt")
