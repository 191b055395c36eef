"""``mansard generate`` and ``mansard chat`` on a small model with a tokenizer of its own."""

from __future__ import annotations

import json
import shutil

import pytest
from support.command_line import invoke, json_of
from support.decoders.checkpoints import write_decoder
from support.decoders.tokenizers_of_tests import CHAT, byte_level
from support.vulkan_support import usable_device

import mansard
from mansard.artifact.signing import generate_key


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
    stopped = json_of(*options, "--stop", expected[5:8], "--stop", "~~")
    assert stopped["text"] == expected[: expected.index(expected[5:8])]
    data = json_of(*options)
    assert data["text"] == expected and len(data["tokens"]) == 12 and data["prompt_tokens"] > 1


def test_an_artifact_generates_the_same_text(artifact, tmp_path):
    options = ("The quick", "-n", 12)
    expected = json_of("generate", artifact, *options, "--device", "cpu", "--context", 48)["text"]
    path = tmp_path / "lm.mansard"
    told = json_of("compile-llm", artifact, "-o", path, "--device", "cpu", "--context", 48, "--proposals", 3)
    assert told["bytes"] == path.stat().st_size and told["tokenizer"] and told["devices"] == ["cpu"]
    assert json_of("generate", path, *options)["text"] == expected
    looked_up = json_of("generate", path, *options, "--draft", "ngram")
    assert looked_up["text"] == expected and looked_up["speculation"] is not None
    told = invoke("compile-llm", path, "-o", tmp_path / "again")
    assert told.exit_code == 1 and "is no checkpoint" in told.stderr
    assert invoke("compile-llm", tmp_path / "no", "-o", path).exit_code == 1


def test_an_artifact_is_generated_from_if_a_trusted_key_signed_it(artifact, tmp_path):
    path = tmp_path / "lm.mansard"
    assert invoke("compile-llm", artifact, "-o", path, "--device", "cpu", "--context", 48).exit_code == 0
    _, public, _ = generate_key(tmp_path / "release.pem")
    command = ("generate", path, "The quick", "-n", 4, "--trusted-key", public)
    told = invoke(*command)
    assert told.exit_code == 1 and "sign" in told.stderr and told.stdout == ""
    assert invoke("sign", path, "--key", tmp_path / "release.pem").exit_code == 0
    assert invoke(*command).exit_code == 0
    told = invoke("generate", artifact, "The quick", "--trusted-key", public)
    assert told.exit_code == 1 and "trusted_keys: for artifacts only" in told.stderr


def test_an_artifact_is_compiled_for_a_target_that_is_not_there(artifact, tmp_path):
    options = ("-o", tmp_path / "lm.mansard", "--target", "vulkan:h200", "--context", 48)
    told = invoke("compile-llm", artifact, *options)
    assert told.exit_code == 0 and "for vulkan" in told.stdout
    options = ("-o", tmp_path / "lm.mansard", "--target", "cpu:x86-64-v4,x86-64-v3", "--context", 48)
    assert invoke("compile-llm", artifact, *options).exit_code == 0
    variants = json_of("devices", "--artifact", tmp_path / "lm.mansard")["variants"]
    assert [variant["target"] for variant in variants] == ["cpu:x86-64-v4", "cpu:x86-64-v3"]


def test_a_missing_tokenizer_is_noticed_before_the_model_is_compiled(artifact, tmp_path, monkeypatch):
    bare = tmp_path / "bare"
    shutil.copytree(artifact, bare)
    (bare / "tokenizer.json").unlink()
    options = ("The quick", "-n", 8, "--device", "cpu", "--context", 48)
    expected = invoke("generate", artifact, *options).stdout
    assert invoke("generate", bare, *options, "--tokenizer", artifact).stdout == expected
    path = tmp_path / "lm.mansard"
    told = invoke("compile-llm", bare, "-o", path, "--device", "cpu", "--context", 48)
    assert told.exit_code == 0 and "without a tokenizer" in told.stdout
    told = invoke("generate", path, "The quick")
    assert told.exit_code == 1 and "has no tokenizer: --tokenizer names" in told.stderr
    assert invoke("generate", path, "The quick", "-n", 8, "--tokenizer", artifact).stdout == expected
    monkeypatch.setattr("mansard.language.load_lm", None)
    for command in (("generate", bare, "The quick"), ("chat", bare)):
        told = invoke(*command)
        assert told.exit_code == 1 and "has no tokenizer: --tokenizer names" in told.stderr


def test_weights_are_quantised_on_request(artifact):
    how = mansard.quantize("int8", activations="int8")
    with mansard.load_lm(artifact, devices="cpu", context=48, quantize=how) as lm:
        expected = lm.text("The quick", 8)
    options = ("generate", artifact, "The quick", "-n", 8, "--device", "cpu", "--context", 48)
    assert invoke(*options, "--quantize", "int8", "--quantize-activations").stdout == expected + "\n"
    told = invoke(*options, "--quantize-activations")
    assert told.exit_code == 2 and "refines --quantize" in told.stderr
    sized = ("--quantize", "int8", "--quantize-activations", "--group-size", 16)
    how = mansard.quantize("int8", activations="int8", group_size=16)
    with mansard.load_lm(artifact, devices="cpu", context=48, quantize=how) as lm:
        expected, weights = lm.text("The quick", 8), lm.memory().to_json()
    result = json_of(*options, *sized)
    assert result["text"] == expected and result["memory"] == weights
    told = invoke(*options, "--group-size", 16)
    assert told.exit_code == 2 and "--group-size refines --quantize" in told.stderr
    told = invoke(*options, "--quantize", "int8", "--group-size", 7)
    assert told.exit_code == 1 and "7" in told.stderr
    told = invoke(*options, "--quantize", "stored")
    assert told.exit_code == 1 and "takes activations='int8'" in told.stderr


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
    command = ["chat", str(artifact), "-n", "3", "--device", "cpu", "--context", "48"]
    told = invoke(*command, input="Hi\nlazy\n\n")
    assert told.exit_code == 0 and told.stderr.count("tokens/s") == 2 and "of them cached" in told.stderr


def test_a_folder_without_a_model_is_one_line(tmp_path):
    told = invoke("generate", tmp_path, "Hello")
    assert told.exit_code == 1 and told.stderr.strip().count("\n") == 0 and "config.json" in told.stderr


def test_speed_is_measured(artifact):
    command = ("bench-llm", artifact, "--prompts", "4,9", "--concurrency", "1,3", "-n", 4, "--runs", 1)
    data = json_of(*command, "--sequences", "1,2", "--device", "cpu")
    rows = data["measurements"]
    cases = [(row["sequences"], row["prompt"], row["concurrency"]) for row in rows]
    assert cases == [(s, p, c) for s in (1, 2) for p in (4, 9) for c in (1, 3)]
    for row in rows:
        assert 0 < row["first_token_s"] <= row["last_first_token_s"] < row["seconds"]
        assert row["prompt_rate"] > row["prompt"] and row["text_rate"] > 0 and row["new_tokens"] == 4
    assert data["cores"] >= 1 and data["cpu"] and data["context"] == 13
    assert set(data["memory"]) == {"1", "2"} and data["memory"]["1"]["cpu"]["weights"] > 0
    told = invoke(*command, "--sequences", 2, "--device", "cpu")
    assert "tokens/s in all" in told.stdout and "memory with 2 sequences: cpu" in told.stdout


def test_wrong_options_of_the_measurement(artifact):
    told = invoke("bench-llm", artifact, "--prompts", "4,x")
    assert told.exit_code == 2 and "'4,x' is not a list of counts such as 1,8" in told.stderr
    told = invoke("bench-llm", artifact, "--quantize-activations")
    assert told.exit_code == 2 and "--quantize-activations refines --quantize" in told.stderr
    told = invoke("bench-llm", artifact, "--prompts", 9, "--sequences", 1, "--context", 16, "--device", "cpu")
    assert told.exit_code == 1 and "9 tokens and 64 new ones do not fit the context of 16" in told.stderr


@pytest.mark.vulkan
def test_devices_with_limits_and_of_methods(artifact):
    usable_device()
    options = ("generate", artifact, "The quick", "-n", 12, "--device", "vulkan,cpu", "--context", 48)
    expected = json_of(*options)["tokens"]
    for more in (("--memory", "cpu=400kB", "--memory", "vulkan=1MB"), ("--method-device", "prefill=vulkan")):
        assert json_of(*options, *more)["tokens"] == expected
    told = invoke(*options, "--method-device", "prefill")
    assert told.exit_code == 2 and "is not METHOD=DEVICE, such as prefill=vulkan" in told.stderr
