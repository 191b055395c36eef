"""Chat templates give what transformers gives."""

from __future__ import annotations

import json

import pytest
import transformers
from support.decoders.tokenizers_of_tests import CHAT, byte_level, write_folder

from mansard.errors import InputError
from mansard.language.tokenizer import load_tokenizer

MESSAGES = [
    {"role": "system", "content": "You are terse."},
    {"role": "user", "content": 'Größe?\n<b>"5" & more</b>'},
    {"role": "assistant", "content": "5"},
    {"role": "user", "content": "Why?"},
]
TOOLS = [{"type": "function", "function": {"name": "größe", "parameters": {"b": [1, None, True], "a": "<"}}}]
TEMPLATES = {
    "chatml": CHAT,
    "blocks": """
        {%- if tools %}
            {{- "Tools: " + tools | tojson(indent=2) }}
        {%- endif %}
        {%- set ns = namespace(last=0) %}
    {% for message in messages %}
        {% if message.role == "system" %}{% continue %}{% endif %}
        {% set ns.last = loop.index %}
        {% if message.role == "assistant" %}{% generation %}{{ message.content }}{% endgeneration %}
        {% else %}{{ message.content | trim }}{% endif %}
        {% if loop.index > 3 %}{% break %}{% endif %}
    {% endfor %}
    {{ ns.last }} {{ enable_thinking }} {{ messages[1:] | tojson }} {{ documents is none }}{{ eos_token }}""",
}


@pytest.fixture
def make(tmp_path):
    def make(template, **files):
        config = {} if template is None else {"chat_template": template}
        write_folder(tmp_path, byte_level(), **{"chat_template": None, **config})
        for name, content in files.items():
            (tmp_path / name.replace("__", ".")).write_text(content)
        return load_tokenizer(tmp_path)

    return make


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("add", [True, False])
def test_prompts_are_those_of_transformers(name, add, make, tmp_path):
    tokenizer = make(TEMPLATES[name])
    known = transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path)
    options = {"add_generation_prompt": add, "tools": TOOLS, "enable_thinking": False}
    wanted = known.apply_chat_template(MESSAGES, tokenize=False, **options)
    assert tokenizer.apply_chat_template(MESSAGES, **options) == wanted
    ids = known.apply_chat_template(MESSAGES, tokenize=True, return_dict=False, **options)
    assert tokenizer.encode_chat(MESSAGES, **options) == list(ids)


def test_where_templates_are(make):
    assert make("A").apply_chat_template([]) == "A"
    assert make("A", chat_template__jinja="B").apply_chat_template([]) == "B"
    assert (
        make([{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]).chat_template
        == "B"
    )


def test_the_default_of_several_templates(make):
    named = [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]
    assert make(named).apply_chat_template([]) == "D"
    assert make(None, chat_template__json=json.dumps({"chat_template": "J"})).chat_template is None


def test_a_model_without_a_template(make):
    with pytest.raises(InputError, match="has no chat template"):
        make(None).apply_chat_template(MESSAGES)


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{% for %}", r"is not valid: line 1"),
        (
            "{{ raise_exception('roles must alternate') }}",
            "cannot render these messages: roles must alternate",
        ),
        ("{{ messages.append(1) }}", "cannot render these messages"),
        ("{{ ''.__class__.__mro__ }}", "cannot render these messages"),
        ("{{ messages[9].content.upper() }}", "cannot render these messages"),
        ("{{ 1 + 'a' }}", "cannot render these messages"),
    ],
)
def test_templates_that_fail(template, message, make):
    with pytest.raises(InputError, match=message):
        make(template).apply_chat_template(MESSAGES)


@pytest.mark.parametrize("messages", ["Hello", {"role": "user"}, ["Hello"], [{"content": object()}]])
def test_what_are_no_messages(messages, make):
    with pytest.raises(InputError, match=r"messages are a list of dicts|messages of a chat contains"):
        make(CHAT).apply_chat_template(messages)
