"""GGUF files of small integers run with their own integers and scales, and give the tokens of the unpacked
weights."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType as Type
from support.vulkan_support import usable_device

from mansard.dims import Dim
from mansard.dtypes import DType
from mansard.frontends.decoders.checkpoint import open_checkpoint
from mansard.frontends.decoders.decoder import DecoderOptions, build_decoder
from mansard.frontends.decoders.families import describe
from mansard.ir.interpreter.graph import interpret
from mansard.language import load_lm

VOCABULARY, HIDDEN, PROMPT = 96, 256, [3, 90, 41, 7, 66, 12, 55]
DEVICES = ["cpu", pytest.param("vulkan", marks=pytest.mark.vulkan)]
SCALES = {Type.Q8_0: (0,), Type.Q4_0: (0,), Type.Q4_K: (0, 2), Type.Q6_K: (208,), Type.TQ2_0: (64,)}
"""Where the blocks of a type have numbers in f16."""
STEP = {Type.Q8_0: 2e-3, Type.Q4_0: 4e-2, Type.Q4_K: 8e-4, Type.Q6_K: 2e-4, Type.TQ2_0: 2**-4}
"""Scales with which all types have elements of one size."""
LAYER = {
    "attn_q": (256, Type.Q8_0), "attn_k": (128, Type.Q4_0), "attn_v": (128, Type.Q4_K),
    "attn_output": (256, Type.Q6_K), "ffn_gate": (256, Type.Q4_0), "ffn_up": (256, Type.Q4_K),
    "ffn_down": (256, Type.TQ2_0),
}  # fmt: skip


def blocks(kind, rows, rng):
    """Rows of HIDDEN elements, bits at random with scales that are small numbers."""
    elements, size = gguf.GGML_QUANT_SIZES[kind]
    count = rows * HIDDEN // elements
    data = rng.integers(0, 256, (count, size), np.uint8)
    for at in SCALES[kind]:
        spread = 1 if kind is Type.TQ2_0 else rng.uniform(0.5, 1.5, (count, 1))  # exact in bf16
        numbers = np.broadcast_to(STEP[kind] * spread, (count, 1)).astype(np.float16)
        data[:, at : at + 2] = numbers.view(np.uint8)
    return data.reshape(rows, -1)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    place, rng = tmp_path_factory.mktemp("quantised") / "model.gguf", np.random.default_rng(2)
    writer = gguf.GGUFWriter(place, "qwen3")
    for key, value in {
        "block_count": 1, "context_length": 64, "embedding_length": HIDDEN, "feed_forward_length": 256,
        "attention.head_count": 4, "attention.head_count_kv": 2, "attention.key_length": 64,
        "attention.value_length": 64,
    }.items():  # fmt: skip
        writer.add_uint32(f"qwen3.{key}", value)
    writer.add_float32("qwen3.attention.layer_norm_rms_epsilon", 1e-6)
    for name, (rows, kind) in {"token_embd": (VOCABULARY, Type.Q8_0)}.items():
        writer.add_tensor(f"{name}.weight", blocks(kind, rows, rng), raw_dtype=kind)
    for name, size in {"blk.0.attn_norm": HIDDEN, "blk.0.ffn_norm": HIDDEN, "output_norm": HIDDEN,
                       "blk.0.attn_q_norm": 64, "blk.0.attn_k_norm": 64}.items():  # fmt: skip
        writer.add_tensor(f"{name}.weight", 1 + rng.integers(-16, 16, size).astype(np.float32) / 64)
    for name, (rows, kind) in LAYER.items():
        writer.add_tensor(f"blk.0.{name}.weight", blocks(kind, rows, rng), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return place


@pytest.fixture(scope="module")
def reference(path):
    """Logits of token numbers, by the interpreter with unpacked weights."""
    checkpoint = open_checkpoint(path, DType.F32)
    options = DecoderOptions(32, Dim("length", 1, 32), dtype=DType.F32, all_logits=True, unpack=True)
    graph = build_decoder(checkpoint, describe(checkpoint.config), options)
    return lambda ids: interpret(graph, {"tokens": np.array([ids]), "positions": np.array([0])})[0][0]


@pytest.fixture(scope="module", params=DEVICES)
def lm(request, path):
    if request.param == "vulkan":
        usable_device()
    with load_lm(path, devices=request.param, context=32, chunk=16, dtype="f32", cache_dtype="f32") as opened:
        yield opened


def test_logits_are_those_of_the_unpacked_weights(lm, reference):
    expected = reference(PROMPT)
    assert np.abs(lm.logits(PROMPT) - expected).max() / np.abs(expected).max() < 1e-5


def test_tokens_are_those_of_the_unpacked_weights(lm, reference):
    ids = list(PROMPT)
    for _ in range(6):
        ids.append(int(reference(ids)[-1].argmax()))
    assert [t.id for t in lm.generate(PROMPT, 6, stop_at_end=False)] == ids[len(PROMPT) :]
    assert len(set(ids[len(PROMPT) :])) > 2  # not one token over and over, which would show little


def test_the_description_says_what_had_to_be_unpacked(lm):
    assert lm.description.stored_types == {
        "TQ2_0": "1 unpacked to bf16", "Q4_0": "2 as stored", "Q4_K": "2 as stored",
        "Q6_K": "1 as stored", "Q8_0": "2 as stored",
    }  # fmt: skip


def test_weights_take_the_bytes_of_the_file(lm):
    sizes = {kind: size / elements for kind, (elements, size) in gguf.GGML_QUANT_SIZES.items()}
    sizes |= {Type.Q6_K: 8.5625 / 8, Type.TQ2_0: 2}  # six bits are kept in eight
    stored = sum(rows * HIDDEN * sizes[kind] for rows, kind in [(VOCABULARY, Type.Q8_0), *LAYER.values()])
    held = sum(row.bytes for row in lm.memory() if row.what == "weights")
    assert stored < held < 1.04 * stored  # norms, scales of panels that are not full


def test_requested_quantisation_starts_from_the_floats(path):
    with load_lm(path, devices="cpu", context=2, chunk=1, quantize="int8") as opened:
        assert opened.description.stored_types["Q4_K"] == "2 unpacked to bf16"
