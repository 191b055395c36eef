"""GGUF files of every architecture come back as the models that they were written from."""

from __future__ import annotations

import tracemalloc

import gguf
import ml_dtypes
import numpy as np
import pytest
import torch
import transformers
from gguf.constants import GGMLQuantizationType as Type
from support.decoders.gguf_models import write_model
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from mansard.dtypes import DType
from mansard.errors import ImportModelError
from mansard.frontends.decoders.checkpoint import open_checkpoint

SMALL = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 64, "max_position_embeddings": 128,
}  # fmt: skip
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 32, "num_experts": 3}
GRANITE = {
    "attention_multiplier": 0.5, "embedding_multiplier": 12.0, "residual_multiplier": 0.22,
    "logits_scaling": 8.0,
}  # fmt: skip
LFM2 = {"layer_types": ["conv", "full_attention"]}
CONFIGS = {
    "llama": transformers.LlamaConfig(**SMALL, tie_word_embeddings=False, rms_norm_eps=1e-5),
    "llama-bias": transformers.LlamaConfig(
        **SMALL, tie_word_embeddings=True, attention_bias=True, mlp_bias=True
    ),
    "qwen2": transformers.Qwen2Config(**SMALL),
    "qwen3": transformers.Qwen3Config(**SMALL, head_dim=32, tie_word_embeddings=True),
    "qwen3_moe": transformers.Qwen3MoeConfig(**SMALL, **EXPERTS, head_dim=32, norm_topk_prob=True),
    "granite": transformers.GraniteConfig(**SMALL, **GRANITE),
    "granitemoe": transformers.GraniteMoeConfig(
        **SMALL, **GRANITE, num_local_experts=3, num_experts_per_tok=2
    ),
    "granitemoeshared": transformers.GraniteMoeSharedConfig(
        **SMALL, **GRANITE, num_local_experts=3, num_experts_per_tok=2, shared_intermediate_size=32
    ),
    "gemma": transformers.GemmaConfig(**SMALL, head_dim=16),
    "gemma2": transformers.Gemma2Config(**SMALL, head_dim=16, sliding_window=32, query_pre_attn_scalar=16),
    "gemma3": transformers.Gemma3TextConfig(
        **SMALL, head_dim=16, sliding_window=32, query_pre_attn_scalar=16
    ),
    "lfm2": transformers.Lfm2Config(**SMALL, **LFM2, block_auto_adjust_ff_dim=False),
    "lfm2_moe": transformers.Lfm2MoeConfig(**SMALL, **EXPERTS, **LFM2, num_dense_layers=1),
}
"""Small configurations with nothing at its default that a file could lose."""
SAME = (
    "model_type", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
    "num_attention_heads", "num_key_value_heads", "head_dim", "max_position_embeddings", "rms_norm_eps",
    "norm_eps", "rope_parameters",
    "tie_word_embeddings", "attention_bias", "mlp_bias", "layer_types", "num_experts", "num_local_experts",
    "num_experts_per_tok", "moe_intermediate_size", "norm_topk_prob", "num_dense_layers", "use_expert_bias",
    "conv_L_cache", "conv_bias", "attention_multiplier", "embedding_multiplier", "residual_multiplier",
    "logits_scaling", "shared_intermediate_size", "query_pre_attn_scalar", "attn_logit_softcapping",
    "final_logit_softcapping", "hidden_activation", "routed_scaling_factor",
)  # fmt: skip
"""Keys that decide what a model computes, where its class has them."""


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """(model, file in F32) by the name of its configuration; models are made when they are asked for."""
    known = {}

    def get(name):
        if name not in known:
            torch.manual_seed(2)
            model = transformers.AutoModelForCausalLM.from_config(CONFIGS[name])
            for tensor in model.state_dict().values():
                tensor.uniform_(-1, 1)  # biases and norms too
            path = tmp_path_factory.mktemp("gguf") / f"{name}.gguf"
            write_model(model, path)
            known[name] = model, path
        return known[name]

    return get


@pytest.mark.parametrize("name", CONFIGS)
def test_a_file_comes_back_as_its_model(name, models):
    model, path = models(name)
    checkpoint = open_checkpoint(path)
    state = model.state_dict()
    if model.config.tie_word_embeddings:
        del state["lm_head.weight"]
    assert checkpoint.names == state.keys()
    for key, tensor in state.items():
        array = checkpoint.constant(key).load()
        assert checkpoint.tensor_type(key).shape == array.shape == tuple(tensor.shape)
        # Norms of Gemma lose what adding and subtracting 1 loses.
        np.testing.assert_allclose(array, tensor.numpy(), rtol=0, atol=1e-7 if "gemma" in name else 0)
        assert checkpoint.quantised(key) is None


@pytest.mark.parametrize("name", CONFIGS)
def test_the_configuration_computes_the_same(name, models):
    model, path = models(name)
    config = open_checkpoint(path).config
    for key in SAME:
        if hasattr(model.config, key) and key in config:
            wanted = getattr(model.config, key)
            assert config[key] == (wanted if isinstance(wanted, dict) else pytest.approx(wanted)), key
    missing = [key for key in SAME if getattr(model.config, key, None) is not None and key not in config]
    assert missing == []


def test_matrices_of_their_own_type_are_views(models):
    _, path = models("llama")
    checkpoint = open_checkpoint(path)
    name = "model.layers.0.mlp.up_proj.weight"
    assert np.shares_memory(checkpoint.constant(name).load(), checkpoint.constant(name).load())
    checkpoint.close()
    with pytest.raises(ImportModelError, match="is closed"):
        checkpoint.constant(name)


@pytest.mark.parametrize("kind", [Type.F16, Type.BF16, Type.Q8_0, Type.Q4_0, Type.Q5_1])
@pytest.mark.parametrize("name", ["llama", "qwen3_moe"])
def test_types_are_unpacked_as_the_library_does(name, kind, models, tmp_path):
    model, _ = models(name)
    written = write_model(model, tmp_path / "model.gguf", kind)
    checkpoint = open_checkpoint(tmp_path / "model.gguf", DType.F32)
    for layer_name, gguf_name, heads in (
        ("model.layers.1.self_attn.q_proj.weight", "blk.1.attn_q.weight", 4 if name == "llama" else None),
        ("model.layers.1.self_attn.v_proj.weight", "blk.1.attn_v.weight", None),
        ("model.layers.1.mlp.experts.down_proj", "blk.1.ffn_down_exps.weight", None),
    ):
        if layer_name not in checkpoint.names:
            continue
        unpacked = gguf.quants.dequantize(gguf.quants.quantize(written[gguf_name], kind), kind)
        if heads is not None:
            unpacked = unpacked.reshape(heads, -1, 2, 64).swapaxes(1, 2).reshape(unpacked.shape)
        np.testing.assert_array_equal(checkpoint.constant(layer_name).load(), unpacked)
        quantised = checkpoint.quantised(layer_name)
        if kind in (Type.F16, Type.BF16):
            assert quantised is None
        else:
            np.testing.assert_array_equal(expanded(quantised), unpacked)


def expanded(quantised):
    """The values of a QuantisedTensor, as its class defines them."""
    values = quantised.values.load()
    if quantised.type.dtype.bits == 4:
        values = np.stack([values & 0xF, values >> 4], axis=-1).reshape(*values.shape[:-1], -1)
        if quantised.type.dtype is DType.I4:
            values = (values ^ 8).astype(np.int8) - 8
    assert values.shape == quantised.type.shape
    scales = np.repeat(quantised.scales.load(), quantised.group, axis=-1)
    assert scales.dtype == np.float32
    result = values * scales
    if quantised.offsets is not None:
        result = result + np.repeat(quantised.offsets.load(), quantised.group, axis=-1)
    return result


def test_merged_experts_of_one_type_stay_quantised(models, tmp_path):
    model, _ = models("qwen3_moe")
    write_model(model, tmp_path / "model.gguf", Type.Q8_0)
    checkpoint = open_checkpoint(tmp_path / "model.gguf", DType.F32)
    name = "model.layers.0.mlp.experts.gate_up_proj"
    quantised = checkpoint.quantised(name)
    assert (quantised.type.shape, quantised.type.dtype, quantised.group) == ((3, 64, 64), DType.I8, 32)
    np.testing.assert_array_equal(expanded(quantised), checkpoint.constant(name).load())
    np.testing.assert_allclose(expanded(quantised), model.state_dict()[name].numpy(), atol=0.01)


def random_blocks(kind, rows, blocks, rng):
    """Rows of blocks of random bits, whose f16 scales are of unit size."""
    size = gguf.GGML_QUANT_SIZES[kind][1]
    data = rng.integers(0, 256, (rows * blocks, size), dtype=np.uint8)
    two = {"Q4_1": (0, 2), "Q5_1": (0, 2), "Q2_K": (80, 82), "Q4_K": (0, 2), "Q5_K": (0, 2)}
    for at in {**two, "Q3_K": (108,), "Q6_K": (208,), "TQ1_0": (52,)}.get(kind.name, (0,)):
        data[:, at : at + 2] = rng.uniform(-1, 1, (len(data), 1)).astype(np.float16).view(np.uint8)
    return data.reshape(rows, -1)


@pytest.mark.parametrize(
    ("kind", "dtype", "group"),
    [
        (Type.Q4_0, DType.I4, 32), (Type.Q4_1, DType.U4, 32), (Type.Q5_0, DType.I8, 32),
        (Type.Q5_1, DType.I8, 32), (Type.Q8_0, DType.I8, 32), (Type.Q2_K, DType.U4, 16),
        (Type.Q3_K, DType.I4, 16), (Type.Q4_K, DType.U4, 32), (Type.Q5_K, DType.I8, 32),
        (Type.Q6_K, DType.I8, 16), (Type.IQ4_NL, DType.I8, 32), (Type.IQ4_XS, DType.I8, 32),
        (Type.IQ2_XXS, None, None), (Type.TQ1_0, None, None),
    ],
)  # fmt: skip
def test_blocks_of_every_type(kind, dtype, group, tmp_path):
    """Also those that the library cannot write: bits at random, with its values as the reference."""
    rng = np.random.default_rng(5)
    width = max(256, gguf.GGML_QUANT_SIZES[kind][0])
    data = random_blocks(kind, 64, width // gguf.GGML_QUANT_SIZES[kind][0], rng)
    checkpoint = one_layer(tmp_path, {"blk.0.attn_k.weight": (data, kind)}, width, DType.F32)
    name = "model.layers.0.self_attn.k_proj.weight"
    reference = gguf.quants.dequantize(data, kind).reshape(2, 16, 2, width).swapaxes(1, 2).reshape(64, width)
    np.testing.assert_array_equal(checkpoint.constant(name).load(), reference)
    quantised = checkpoint.quantised(name)
    if dtype is None:
        assert quantised is None
    else:
        assert (quantised.type.dtype, quantised.group) == (dtype, group)
        np.testing.assert_array_equal(expanded(quantised), reference)


def one_layer(folder, tensors, width=64, dtype=None, layers=1, **metadata):
    """A Llama file with these tensors (arrays, or bytes and their type), an embedding and a norm a layer."""
    writer = gguf.GGUFWriter(folder / "one.gguf", metadata.pop("architecture", "llama"))
    numbers = {
        "block_count": layers, "context_length": 128, "embedding_length": width, "feed_forward_length": 64,
        "attention.head_count": 4, "attention.head_count_kv": 2, "attention.layer_norm_rms_epsilon": 1e-5,
    }  # fmt: skip
    for key, value in {**numbers, **{k.replace("__", "."): v for k, v in metadata.items()}}.items():
        whole_key = key if key.startswith("general.") else f"{writer.arch}.{key}"
        add = {str: writer.add_string, float: writer.add_float32, int: writer.add_uint32}
        if value is not None:
            add[type(value)](whole_key, value)
    layers = {f"blk.{layer}.attn_norm.weight": np.ones(width, np.float32) for layer in range(layers)}
    embedding = {"token_embd.weight": np.zeros((8, width), np.float32)}
    for name, data in {**embedding, **layers, **tensors}.items():
        if data is not None:
            array, kind = data if isinstance(data, tuple) else (data, None)
            writer.add_tensor(name, array, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return open_checkpoint(folder / "one.gguf", dtype)


def test_unpacking_takes_little_more_than_its_result(tmp_path):
    data = random_blocks(Type.Q4_K, 4096, 4, np.random.default_rng(1))
    checkpoint = one_layer(tmp_path, {"blk.0.ffn_up.weight": (data, Type.Q4_K)}, 1024)
    name = "model.layers.0.mlp.up_proj.weight"
    quantised = checkpoint.quantised(name)
    for constant in (checkpoint.constant(name), quantised.values, quantised.scales):
        tracemalloc.start()
        size = constant.load().nbytes
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < size + 12 * 2**20


def test_scales_that_are_no_numbers_stay_what_they_are(tmp_path):
    data = np.zeros((1, 2 * 34), np.uint8)
    data[0, :2] = np.array([np.inf], np.float16).view(np.uint8)
    array = one_layer(tmp_path, {"blk.0.ffn_up.weight": (data, Type.Q8_0)}).constant(
        "model.layers.0.mlp.up_proj.weight"
    )
    values = array.load().astype(np.float32)
    assert np.isnan(values[0, :32]).all()
    assert (values[0, 32:] == 0).all()


def test_many_rows_are_decoded_in_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr("mansard.frontends.decoders.checkpoint.gguf_arrays._CHUNK", 200)
    data = random_blocks(Type.Q8_0, 64, 2, np.random.default_rng(1))
    checkpoint = one_layer(tmp_path, {"blk.0.attn_q.weight": (data, Type.Q8_0)}, 64, DType.F32)
    name = "model.layers.0.self_attn.q_proj.weight"
    reference = gguf.quants.dequantize(data, Type.Q8_0).reshape(4, 8, 2, 64).swapaxes(1, 2).reshape(64, 64)
    np.testing.assert_array_equal(checkpoint.constant(name).load(), reference)
    np.testing.assert_array_equal(expanded(checkpoint.quantised(name)), reference)


@pytest.mark.parametrize(
    ("wanted", "expected"), [(None, DType.BF16), (DType.F16, DType.F16), (DType.F32, DType.F32)]
)
def test_quantised_files_are_offered_in_the_chosen_type(wanted, expected, models, tmp_path):
    model, _ = models("llama")
    write_model(model, tmp_path / "model.gguf", Type.Q8_0)
    checkpoint = open_checkpoint(tmp_path / "model.gguf", wanted)
    for name in ("model.norm.weight", "model.layers.0.self_attn.k_proj.weight"):
        assert checkpoint.tensor_type(name).dtype is expected
        assert checkpoint.constant(name).load().dtype == expected.numpy
    assert (
        checkpoint.config["dtype"] == {"bf16": "bfloat16", "f16": "float16", "f32": "float32"}[expected.value]
    )


def test_the_bias_that_selects_experts_is_not_rounded(models):
    model, path = models("lfm2_moe")
    name = "model.layers.1.feed_forward.expert_bias"
    checkpoint = open_checkpoint(path, DType.BF16)
    assert checkpoint.tensor_type(name).dtype is DType.F32
    np.testing.assert_array_equal(checkpoint.constant(name).load(), model.state_dict()[name].numpy())
    assert checkpoint.constant("model.layers.1.feed_forward.gate.weight").load().dtype == ml_dtypes.bfloat16


@pytest.mark.parametrize(
    "parameters",
    [
        {
            "factor": 32.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
        {
            "factor": 8.0,
            "low_freq_factor": 2.0,
            "high_freq_factor": 7.0,
            "original_max_position_embeddings": 1000,
        },
    ],
)
def test_llama3_scaling_of_the_rotation_comes_back(parameters, tmp_path):
    """The file has factors; the frequencies that follow from the configuration are those of transformers."""
    rope = {"rope_type": "llama3", "rope_theta": 500000.0, **parameters}
    wanted = rotary_frequencies(rope)
    plain = rotary_frequencies({"rope_type": "default", "rope_theta": 500000.0})
    tensors = {"rope_freqs.weight": (plain / wanted).numpy()}
    checkpoint = one_layer(tmp_path, tensors, 256, rope__freq_base=500000.0)
    assert checkpoint.config["rope_parameters"]["rope_type"] == "llama3"
    torch.testing.assert_close(
        rotary_frequencies(checkpoint.config["rope_parameters"]), wanted, rtol=1e-4, atol=0
    )


def rotary_frequencies(rope):
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    config = transformers.LlamaConfig(
        hidden_size=256,
        num_attention_heads=4,
        head_dim=64,
        rope_parameters=rope,
        max_position_embeddings=131072,
    )
    return LlamaRotaryEmbedding(config).inv_freq


def test_scalings_and_partial_rotations(tmp_path):
    checkpoint = one_layer(
        tmp_path, {}, rope__scaling__type="yarn", rope__scaling__factor=4.0,
        rope__scaling__original_context_length=32, rope__dimension_count=8,
    )  # fmt: skip
    assert checkpoint.config["rope_parameters"] == {
        "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 32,
        "partial_rotary_factor": 0.5,
    }  # fmt: skip


def test_gemma_3_with_a_scaled_rotation(tmp_path):
    checkpoint = one_layer(
        tmp_path, {}, architecture="gemma3", layers=7, rope__freq_base=1e6, rope__scaling__type="linear",
        rope__scaling__factor=8.0, attention__sliding_window=512, attention__key_length=32,
    )  # fmt: skip
    assert checkpoint.config["rope_parameters"] == {
        "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    }
    assert checkpoint.config["layer_types"] == [
        *["sliding_attention"] * 5,
        "full_attention",
        "sliding_attention",
    ]


@pytest.mark.parametrize(
    ("tensors", "metadata", "message"),
    [
        ({}, {"architecture": "bert"}, "is of architecture 'bert'; supported in GGUF files are llama"),
        ({}, {"block_count": 2**31}, "has tensors of 1 layers; llama.block_count = 2147483648"),
        ({}, {"block_count": None}, r"llama.block_count = None; a positive number is needed"),
        ({}, {"attention__head_count": "four"}, r"llama.attention.head_count = 'four'"),
        ({}, {"attention__value_length": 8}, "values of another width than keys"),
        ({}, {"architecture": "lfm2", "shortconv__l_cache": 3}, "a number for each of the 1 layers"),
        ({"token_embd.weight": None}, {}, "has no matrix token_embd.weight"),
        ({"blk.0.attn_sinks.weight": np.zeros(4, np.float32)}, {}, "'blk.0.attn_sinks.weight', which its"),
        ({"blk.0.attn_q.weight": np.zeros((6, 64), np.float32)}, {}, "has 6 rows for 4 heads"),
        ({"rope_freqs.weight": np.ones(5, np.float32)}, {}, "is not a vector of 8 numbers"),
        (
            {"rope_freqs.weight": np.arange(1, 9, dtype=np.float32)}, {},
            "rope_freqs.weight of .* follows no known scaling",
        ),
        (
            {"blk.0.ffn_gate_exps.weight": np.zeros((2, 4, 64), np.float32),
             "blk.0.ffn_up_exps.weight": np.zeros((3, 4, 64), np.float32)},
            {"expert_count": 2, "expert_used_count": 1},
            r"of shapes \[2, 4, 64\] and \[3, 4, 64\] cannot be joined",
        ),
        ({"blk.0.attn_v.weight": np.zeros((4, 64), np.int32)}, {}, "has type I32, which cannot be read"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_model_is_said(tensors, metadata, message, tmp_path):
    with pytest.raises(ImportModelError, match=message):
        one_layer(tmp_path, tensors, **metadata)


def test_a_missing_tensor_names_the_nearest(tmp_path):
    with pytest.raises(
        ImportModelError, match=r"no tensor 'model.embed_tokens'; the nearest are model.embed_t"
    ):
        one_layer(tmp_path, {}).constant("model.embed_tokens")


def test_recommended_sampling(tmp_path):
    metadata = {"general.sampling.temp": 0.5, "general.sampling.top_k": 20}
    assert one_layer(tmp_path, {}, **metadata).generation == {"temperature": 0.5, "top_k": 20}


@pytest.mark.parametrize("name", ["llama", "qwen3_moe"])
def test_transformers_reads_the_same(name, models, tmp_path):
    model, _ = models(name)
    write_model(model, tmp_path / "model.gguf", Type.Q4_0)
    # Through load_gguf_checkpoint: from_pretrained asks for a package more.
    known = load_gguf_checkpoint(tmp_path / "model.gguf", return_tensors=True, model_to_load=model)
    checkpoint = open_checkpoint(tmp_path / "model.gguf", DType.F32)
    assert {*known["tensors"]} == checkpoint.names
    for key, tensor in known["tensors"].items():
        np.testing.assert_array_equal(checkpoint.constant(key).load(), tensor.numpy(), err_msg=key)
    for key in ("num_hidden_layers", "num_key_value_heads", "rms_norm_eps", "max_position_embeddings"):
        assert checkpoint.config[key] == known["config"][key]


@pytest.mark.parametrize("name", CONFIGS)
def test_the_configuration_makes_the_same_model(name, models):
    """transformers' class with the configuration and the tensors of the file gives the model's logits."""
    model, path = models(name)
    checkpoint = open_checkpoint(path)
    again = transformers.AutoModelForCausalLM.from_config(
        transformers.AutoConfig.for_model(**checkpoint.config)
    )
    tensors = {key: torch.from_numpy(checkpoint.constant(key).load()) for key in checkpoint.names}
    again.load_state_dict(tensors, strict=False)
    ids = torch.arange(48)[None] % 64  # longer than the window of the layers that have one
    with torch.no_grad():
        torch.testing.assert_close(again.eval()(ids).logits, model.eval()(ids).logits, rtol=1e-4, atol=1e-4)
