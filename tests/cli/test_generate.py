"""``mansard generate`` and ``mansard chat`` on a small model with a tokenizer of its own."""

from __future__ import annotations

import json

import pytest
from support.command_line import invoke, json_of
from support.decoders.checkpoints import write_decoder
from support.decoders.tokenizers_of_tests import CHAT, byte_level
from typer.testing import CliRunner

import mansard
from mansard.cli.main import app


@pytest.fixture(scope="module")
def artifact(tmp_path_factory):
    """The folder of a checkpoint whose vocabulary is that of its tokenizer."""
    folder = tmp_path_factory.mktemp("lm")
    write_decoder(folder, "llama", vocab_size=byte_level().get_vocab_size())
    byte_level().save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": CHAT, "bos_token": "<s>"}))
    return folder


def test_text_is_generated_as_the_api_does(artifact):
    with mansard.load_lm(artifact, devices="cpu", context=48) as lm:
        expected = lm.text("The quick", 12)
    options = ("generate", artifact, "The quick", "-n", 12, "--device", "cpu", "--context", 48)
    told = invoke(*options)
    assert told.stdout == expected + "\n" and "tokens/s" in told.stderr
    data = json_of(*options)
    assert data["text"] == expected and len(data["tokens"]) == 12 and data["prompt_tokens"] > 1


def test_a_draft_proposes_what_is_verified(artifact, tmp_path):
    options = ("generate", artifact, "The quick", "-n", 24, "--device", "cpu", "--context", 48)
    expected = json_of(*options)
    assert expected["speculation"] is None
    told = invoke(*options, "--draft", artifact, "--trace", tmp_path / "trace.json")
    assert told.stdout == expected["text"] + "\n" and "proposals accepted" in told.stderr
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    names = {event["name"].split()[0] for event in events if event["ph"] == "X"}
    assert {"draft", "verify", "decode"} <= names
    looked_up = json_of(*options, "--draft", "ngram")
    assert looked_up["text"] == expected["text"] and looked_up["speculation"]["single"] > 0


def test_a_chat_goes_on(artifact):
    command = ["chat", str(artifact), "-n", "3", "--device", "cpu", "--context", "64"]
    told = CliRunner().invoke(app, command, input="Hi\nlazy\n\n")
    assert told.exit_code == 0 and told.stderr.count("tokens/s") == 2 and "of them cached" in told.stderr


def test_a_folder_without_a_model_is_one_line(tmp_path):
    told = invoke("generate", tmp_path, "Hello")
    assert told.exit_code == 1 and told.stderr.strip().count("\n") == 0 and "config.json" in told.stderr
