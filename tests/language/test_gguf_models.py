"""A GGUF file from end to end: quantised weights, tokenizer and end of text of one file."""

from __future__ import annotations

import pytest
import torch
import transformers
from gguf.constants import GGMLQuantizationType as Type
from support.decoders.gguf_models import write_model
from support.decoders.tokenizers_of_tests import byte_level, write_tokenizer

import mansard
from mansard.frontends.decoders.checkpoint import open_checkpoint


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """(language model, transformers' model with the unpacked weights of its file)."""
    known = byte_level()
    config = transformers.LlamaConfig(
        hidden_size=64, intermediate_size=96, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=2, vocab_size=known.get_vocab_size(), max_position_embeddings=64,
    )  # fmt: skip
    torch.manual_seed(4)
    written = transformers.LlamaForCausalLM(config)
    for tensor in written.state_dict().values():
        tensor.normal_(0, 0.3)
    path = tmp_path_factory.mktemp("gguf") / "model.gguf"
    write_model(written, path, Type.Q8_0, lambda writer: write_tokenizer(writer, known))
    checkpoint = open_checkpoint(path)
    tensors = {name: checkpoint.constant(name).load().astype("float32") for name in checkpoint.names}
    written.load_state_dict({name: torch.from_numpy(array) for name, array in tensors.items()})
    return mansard.load_lm(path, devices="cpu", context=64, dtype="f32"), written.eval()


def test_text_of_a_quantised_file(model):
    lm, known = model
    ids = lm.tokenizer.encode("The quick brown fox")
    prompt = torch.tensor([ids])
    tokens = list(lm.generate("The quick brown fox", max_new_tokens=12, temperature=0.0))
    wanted = known.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        max_new_tokens=12,
        do_sample=False,
        eos_token_id=list(lm.tokenizer.eos_ids),
        pad_token_id=0,
    )[0, len(ids) :].tolist()
    assert [token.id for token in tokens] == wanted
    text = "".join(token.text for token in tokens)
    assert text == lm.tokenizer.decode([token.id for token in tokens]).rstrip("\ufffd")


def test_the_tokens_that_end_are_those_of_the_file(model):
    lm, _ = model
    assert lm.tokenizer.eos_ids == tuple(lm.description.end_tokens)
