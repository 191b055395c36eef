"""A language model whose prompts are read on the NPU, as far as that has functions for it."""

from __future__ import annotations

import json

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

import mansard

HIDDEN, INNER, VOCABULARY = 64, 128, 97


def write_llama(folder):
    """One layer with random bf16 weights."""
    rng = np.random.default_rng(0)

    def weight(*shape):
        return (rng.standard_normal(shape) * 0.1).astype(ml_dtypes.bfloat16)

    tensors = {"model.embed_tokens.weight": weight(VOCABULARY, HIDDEN), "model.norm.weight": weight(HIDDEN)}
    for name in ("input_layernorm", "post_attention_layernorm"):
        tensors[f"model.layers.0.{name}.weight"] = weight(HIDDEN)
    for name, rows in (("q_proj", HIDDEN), ("k_proj", 32), ("v_proj", 32), ("o_proj", HIDDEN)):
        tensors[f"model.layers.0.self_attn.{name}.weight"] = weight(rows, HIDDEN)
    for name, shape in (("gate", (INNER, HIDDEN)), ("up", (INNER, HIDDEN)), ("down", (HIDDEN, INNER))):
        tensors[f"model.layers.0.mlp.{name}_proj.weight"] = weight(*shape)
    tensors["lm_head.weight"] = weight(VOCABULARY, HIDDEN)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    config = {
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 64,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
    }
    (folder / "config.json").write_text(json.dumps(config))


def test_prompts_are_read_on_the_npu(tmp_path):
    write_llama(tmp_path)
    prompt = np.random.default_rng(1).integers(0, VOCABULARY, 19).tolist()
    placed = {"devices": ["npu", "cpu"], "method_devices": {"prefill": "npu", "decode": "cpu"}}
    tokens = []
    for options in ({"devices": "cpu"}, placed):
        with mansard.load_lm(tmp_path, context=48, chunk=8, **options) as lm:
            tokens.append([token.id for token in lm.generate(prompt, 12)])
            if options is placed:
                assert lm.model.method("prefill").explain().totals["npu"] >= 4
                assert lm.model.method("decode").explain().totals["npu"] == 0
    assert tokens[0] == tokens[1]
