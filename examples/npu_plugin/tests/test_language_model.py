"""Language models whose prompts are read on an NPU, as far as that has functions for it, or memory."""

from __future__ import annotations

import contextlib
import dataclasses
import json

import ml_dtypes
import numpy as np
from mansard_npu_graph.compiler import BACKEND
from mansard_npu_graph.device import DRIVER
from safetensors.numpy import save_file

import mansard
from mansard.hal import registry
from mansard.targets.profile import LinkProfile

HIDDEN, INNER, VOCABULARY = 64, 128, 97


def write_llama(folder, layers=1, dtype=ml_dtypes.bfloat16):
    """Layers with random weights; returns their bytes."""
    rng = np.random.default_rng(0)

    def weight(*shape):
        return (rng.standard_normal(shape) * 0.1).astype(dtype)

    tensors = {"model.embed_tokens.weight": weight(VOCABULARY, HIDDEN), "model.norm.weight": weight(HIDDEN)}
    for layer in range(layers):
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"model.layers.{layer}.{name}.weight"] = weight(HIDDEN)
        for name, rows in (("q_proj", HIDDEN), ("k_proj", 32), ("v_proj", 32), ("o_proj", HIDDEN)):
            tensors[f"model.layers.{layer}.self_attn.{name}.weight"] = weight(rows, HIDDEN)
        for name, shape in (("gate", (INNER, HIDDEN)), ("up", (INNER, HIDDEN)), ("down", (HIDDEN, INNER))):
            tensors[f"model.layers.{layer}.mlp.{name}_proj.weight"] = weight(*shape)
    tensors["lm_head.weight"] = weight(VOCABULARY, HIDDEN)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    config = {
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": layers,
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
    return sum(tensor.nbytes for tensor in tensors.values())


@contextlib.contextmanager
def reading_prompts_on(npu, folder, *, dtype=None, **options):
    """A language model of ``folder`` whose prompts an NPU reads, once it has given the same tokens as on the
    CPU alone."""
    prompt = np.random.default_rng(1).integers(0, VOCABULARY, 19).tolist()
    common = {"context": 48, "chunk": 8, "dtype": dtype}
    placed = {"devices": [npu, "cpu"], "method_devices": {"prefill": npu, "decode": "cpu"}, **options}
    with mansard.load_lm(folder, devices="cpu", **common) as lm:
        expected = [token.id for token in lm.generate(prompt, 12)]
    with mansard.load_lm(folder, **common, **placed) as lm:
        assert [token.id for token in lm.generate(prompt, 12)] == expected
        assert lm.model.method("decode").explain().totals[npu] == 0
        yield lm


def test_prompts_are_read_on_the_npu(tmp_path):
    write_llama(tmp_path)
    with reading_prompts_on("npu", tmp_path) as lm:
        assert lm.model.method("prefill").explain().totals["npu"] >= 4


def test_an_npu_with_memory_for_a_quarter_of_the_weights_reads_prompts(tmp_path, monkeypatch):
    """Two layers: regions of the prefill on the NPU, decoding on the CPU, with one cache."""
    total = write_llama(tmp_path, layers=2, dtype=np.float32)
    monkeypatch.setattr(DRIVER, "memory", total // 4)
    with reading_prompts_on("gnpu", tmp_path, dtype="f32", fixed_chunk=True) as lm:
        prefill = lm.model.method("prefill").explain()
        assert prefill.totals["gnpu"] >= 2
        held = sum(row.bytes for row in lm.memory() if row.device == "gnpu" and row.what == "code")
        assert total / 8 < held < total / 4 + 8192 * prefill.totals["gnpu"]
        states = [row for row in lm.memory() if row.what == "states"]
        assert states and {row.device for row in states} == {"cpu"}
        # Over its slow link no program is worth a load in every call.
        (rejected,) = prefill.prediction.rejected
        assert rejected.name == "with swapping" and rejected.loaded_bytes > 0
        assert rejected.cost > prefill.prediction.cost_ms


def test_prompts_are_read_in_programs_that_take_turns(tmp_path, monkeypatch):
    """The same NPU, now so fast, with a link so fast, that all regions of the prefill are worth their
    loads."""
    total = write_llama(tmp_path, layers=2, dtype=np.float32)
    profile = BACKEND.profile("gnpu", None)
    fast = dataclasses.replace(profile, link=LinkProfile(1e12, 1e-9), launch=1e-9)
    monkeypatch.setattr(BACKEND, "profile", lambda text, device: fast)
    monkeypatch.setattr(BACKEND, "estimate_region", lambda region, target: 1e-9)
    monkeypatch.setattr(DRIVER, "memory", total // 4)
    npu = DRIVER.open(DRIVER.devices()[0])
    monkeypatch.setitem(registry._open, "gnpu", npu)
    with reading_prompts_on("gnpu", tmp_path, dtype="f32", fixed_chunk=True) as lm:
        prefill = lm.model.method("prefill")
        explanation = prefill.explain()
        possible = [d.device for d in explanation.rows if isinstance(d.costs["gnpu"], float)]
        # Two products go with the caches that they fill, which the CPU holds.
        assert possible.count("gnpu") >= 12 and possible.count("cpu") == 2
        swapped = sum(row.bytes for row in prefill.memory() if row.kind == "swapped")
        assert swapped > total / 2
        assert prefill.stats.program_bytes >= 2 * swapped  # three pieces of the prompt
        assert npu.peak_memory <= total // 4
        (rejected,) = explanation.prediction.rejected
        assert rejected.name == "without swapping" and rejected.loaded_bytes == 0
        assert rejected.cost > 0
