"""Every wrong request is answered with a status and a reason, in the form of OpenAI's API."""

from __future__ import annotations

import json
import time

import httpx2
import pytest

COMPLETION = {"model": "tiny", "prompt": "Hi", "max_tokens": 2}
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}


@pytest.fixture(scope="module")
def http(server):
    with httpx2.Client(base_url=server.url, timeout=30) as client:
        yield client


def refused(response, status, code, text, param=None):
    assert response.headers["content-type"] == "application/json"
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (status, code), error
    assert text in error["message"] and set(error) == {"message", "type", "param", "code"}
    assert param is None or error["param"] == param


WRONG = [
    ({"model": None}, "missing", "the field model is missing"),
    ({"model": 3}, "invalid_type", "model=3 is not a string"),
    ({"prompt": None}, "missing", "the field prompt is missing"),
    ({"prompt": 3}, "invalid_type", "prompt=3 is not a text"),
    ({"prompt": []}, "invalid_type", "prompt=[] is not a text"),
    ({"prompt": ["a", 3]}, "invalid_type", "is not a text"),
    ({"prompt": [True]}, "invalid_type", "is not a text"),
    ({"prompt": "\ud800"}, "invalid_value", "not valid Unicode"),
    ({"prompt": [100000]}, "invalid_value", "token 100000 is outside the vocabulary"),
    ({"prompt": [-1]}, "invalid_value", "token -1 is outside the vocabulary"),
    ({"prompt": [7] * 97}, "context_length_exceeded", "the prompt has 97 tokens; the model's cache holds 96"),
    ({"prompt": "lazy " * 5000}, "context_length_exceeded", "the model's cache holds 96"),
    ({"prompt": ["a"] * 129}, "invalid_value", "129 prompts are more than 128 texts"),
    ({"n": 0}, "invalid_value", "n=0 is not in 1 to 128"),
    ({"prompt": ["a", "b"], "n": 100}, "invalid_value", "2 prompts with n=100 are more than 128 texts"),
    ({"max_tokens": 0}, "invalid_value", "max_tokens=0 is not in 1"),
    ({"max_tokens": "3"}, "invalid_type", "max_tokens='3' is not a whole number"),
    ({"max_tokens": 2.5}, "invalid_type", "max_tokens=2.5 is not a whole number"),
    ({"temperature": -1}, "invalid_value", "temperature=-1 is not in 0 to 100"),
    ({"temperature": True}, "invalid_type", "temperature=True is not a number"),
    ({"temperature": 10**400}, "invalid_value", "is not in 0 to 100"),
    ({"top_p": 1.5}, "invalid_value", "top_p=1.5 is not in 0 to 1"),
    ({"top_k": 1000}, "invalid_value", "top_k=1000 is not in 0 to 128"),
    ({"min_p": "a"}, "invalid_type", "min_p='a' is not a number"),
    ({"repetition_penalty": 0}, "invalid_value", "repetition_penalty=0 is not in 0.01 to 100"),
    ({"seed": 2**63}, "invalid_value", "seed="),
    ({"stop": [""]}, "invalid_value", "at least one character"),
    ({"stop": [3]}, "invalid_value", "stop: 3 is a int"),
    ({"stop": ["a"] * 17}, "invalid_value", "stop has 17 texts"),
    ({"stream": "yes"}, "invalid_type", "stream='yes' is not true or false"),
    ({"stream_options": {"include_usage": True}}, "invalid_value", "set stream=true"),
    ({"stream": True, "stream_options": {"usage": True}}, "unknown_parameter", "'usage' is not a field"),
    ({"logprobs": 21}, "invalid_value", "logprobs=21 is not in 0 to 20"),
    ({"logprobs": True}, "invalid_type", "logprobs=True is not a whole number"),
    ({"best_of": 3}, "unsupported_parameter", "best_of=3 is not supported"),
    ({"echo": True}, "unsupported_parameter", "echo=True is not supported"),
    ({"suffix": "end"}, "unsupported_parameter", "suffix='end' is not supported"),
    ({"presence_penalty": 0.5}, "unsupported_parameter", "use repetition_penalty"),
    ({"frequency_penalty": 0.5}, "unsupported_parameter", "use repetition_penalty"),
    ({"logit_bias": {"5": 3}}, "unsupported_parameter", "logit_bias="),
    ({"guided_regex": "a*"}, "unknown_parameter", "'guided_regex' is not a field of this request"),
    ({"priority": 1.5}, "invalid_type", "priority=1.5 is not a whole number"),
    ({"deadline": -1}, "invalid_value", "deadline=-1 is not in 0"),
]
WRONG_CHATS = [
    ({"messages": None}, "missing", "the field messages is missing"),
    ({"messages": []}, "invalid_type", "not a list of at least one message"),
    ({"messages": ["Hi"]}, "invalid_type", "messages[0]='Hi' is not an object"),
    ({"messages": [{"role": "robot", "content": "Hi"}]}, "invalid_value", "messages[0].role='robot'"),
    ({"messages": [{"role": "user"}]}, "invalid_type", "messages[0].content=None"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
     "unsupported_content", "messages[0].content[0]="),
    ({"messages": [{"role": "user", "content": "a", "name": 3}]}, "invalid_type", "messages[0].name=3"),
    ({"messages": [{"role": "assistant", "content": "a", "tool_calls": [{}]}]},
     "unsupported_parameter", "messages[0].tool_calls is not supported"),
    ({"messages": [{"role": "user", "content": "lazy " * 300}]}, "context_length_exceeded", "holds 96"),
    ({"tools": [{}]}, "unsupported_parameter", "answers are text and call nothing"),
    ({"tool_choice": "required"}, "unsupported_parameter", "tool_choice='required'"),
    ({"response_format": {"type": "json_object"}}, "unsupported_parameter", "answers are plain text"),
    ({"modalities": ["audio"]}, "unsupported_parameter", "answers are text"),
    ({"reasoning_effort": "high"}, "unsupported_parameter", "reasoning_effort='high'"),
    ({"top_logprobs": 3}, "invalid_value", "top_logprobs needs logprobs=true"),
    ({"logprobs": True, "top_logprobs": 21}, "invalid_value", "top_logprobs=21"),
    ({"chat_template_kwargs": {"messages": []}}, "invalid_value", "cannot set 'messages'"),
    ({"prompt": "a"}, "unknown_parameter", "'prompt' is not a field"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "code", "text"), WRONG, ids=[f"{n}-{next(iter(w[0]))}" for n, w in enumerate(WRONG)]
)
def test_wrong_completions(http, changes, code, text):
    refused(http.post("/v1/completions", content=json.dumps({**COMPLETION, **changes})), 400, code, text)


@pytest.mark.parametrize(
    ("changes", "code", "text"),
    WRONG_CHATS,
    ids=[f"{n}-{next(iter(w[0]))}" for n, w in enumerate(WRONG_CHATS)],
)
def test_wrong_chats(http, changes, code, text):
    refused(http.post("/v1/chat/completions", json={**CHAT, **changes}), 400, code, text)


def test_what_changes_nothing_is_accepted(http):
    neutral = {
        "presence_penalty": 0, "frequency_penalty": 0.0, "logit_bias": {}, "user": "a", "stop": [], "n": None,
        "best_of": 1, "echo": False, "suffix": "", "metadata": {"a": "b"}, "service_tier": "auto",
    }  # fmt: skip
    assert http.post("/v1/completions", json={**COMPLETION, **neutral}).status_code == 200
    chat = {
        "tools": [], "tool_choice": "none", "response_format": {"type": "text"}, "modalities": ["text"],
        "parallel_tool_calls": True, "store": False, "chat_template_kwargs": {"enable_thinking": False},
    }  # fmt: skip
    assert http.post("/v1/chat/completions", json={**CHAT, **chat}).status_code == 200


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"\xff", b'{"n": NaN}', b"[" * 100000, b'{"seed": ' + b"9" * 5000 + b"}"]
)
def test_bodies_that_are_no_object(http, body):
    refused(http.post("/v1/completions", content=body), 400, "invalid_json", "the body is")


def test_wrong_headers(http):
    for header, value in (
        ("x-priority", "high"),
        ("x-deadline", "-1"),
        ("x-deadline", "nan"),
        ("x-priority", "1e9"),
    ):
        response = http.post("/v1/completions", json=COMPLETION, headers={header: value})
        refused(response, 400, "invalid_value", f"the header {header}", header)


def test_wrong_places(http):
    refused(http.get("/v1/nothing"), 404, "unknown_url", "/v1/chat/completions")
    refused(http.get("/"), 404, "unknown_url", "there is nothing at /")
    refused(http.get("/v1/completions"), 405, "method_not_allowed", "does not take GET")
    refused(http.post("/v1/completions", json={**COMPLETION, "model": "x"}), 404, "model_not_found", "'tiny'")


def test_a_body_that_is_too_long(http, server):
    most = server.service.options.max_body
    refused(
        http.post("/v1/completions", content=b" " * (most + 1)), 413, "body_too_long", f"more than {most}"
    )
    pieces = (b" " * (1 << 20) for _ in range(20))
    refused(http.post("/v1/completions", content=pieces), 413, "body_too_long", f"more than {most}")


def test_a_deadline(http, server):
    long = {**COMPLETION, "max_tokens": 90, "ignore_eos": True}
    late = http.post("/v1/completions", json={**long, "deadline": 0.001})
    refused(late, 504, "deadline_exceeded", "not complete after 0.001 s")
    assert late.headers["x-should-retry"] == "false"
    late = http.post("/v1/completions", json={**long, "stream": True}, headers={"x-deadline": "0.005"})
    assert late.status_code == 504 or '"code":"deadline_exceeded"' in late.text.split("\n\n")[-2]
    server.wait_idle()


def test_errors_of_a_device(http, server, monkeypatch):
    def failing(*_):
        raise RuntimeError("the device says no")

    monkeypatch.setattr(server.engine.methods, "advance", failing)
    refused(http.post("/v1/completions", json=COMPLETION), 500, "device_error", "the device says no")
    stream = http.post("/v1/completions", json={**COMPLETION, "stream": True}).text.split("\n\n")
    assert '"error":' in stream[-2] and "[DONE]" not in stream[-2]
    monkeypatch.undo()
    assert http.post("/v1/completions", json=COMPLETION).status_code == 200


def test_a_full_queue_and_a_key(another_server):
    with (
        another_server(api_key="sécret", max_waiting=1) as other,
        httpx2.Client(base_url=other.url) as http,
    ):
        refused(http.post("/v1/completions", json=COMPLETION), 401, "invalid_api_key", "needs a key")
        wrong = {"authorization": "Bearer s\u00e9cret".encode("latin-1")}
        refused(http.get("/v1/models", headers=wrong), 401, "invalid_api_key", "needs a key")
        assert http.get("/health").json() == {"status": "ok"}
        http.headers.update([(b"authorization", "Bearer sécret".encode())])
        several = http.post("/v1/completions", json={**COMPLETION, "prompt": ["a"] * 100})
        refused(several, 429, "queue_full", "1 requests wait already")
        assert int(several.headers["retry-after"]) >= 1
        assert http.post("/v1/completions", json=COMPLETION).status_code == 200
        other.wait_idle()


def test_metrics(http, server):
    assert http.get("/health").status_code == 200
    late = http.post("/v1/completions", json={**COMPLETION, "max_tokens": 90, "deadline": 0.0001})
    assert late.status_code == 504
    server.wait_idle()
    before = values(http.get("/metrics").text)
    http.post("/v1/completions", json={**COMPLETION, "max_tokens": 7, "ignore_eos": True})
    answered = 'mansard_requests_total{endpoint="completions",status="200"}'

    def grown(name):
        return after.get(name, 0) - before.get(name, 0)

    deadline = time.monotonic() + 10
    while True:  # an answer arrives before the server has counted it and let its cache go
        after = values(http.get("/metrics").text)
        if grown(answered) and not after["mansard_requests_running"]:
            break
        assert time.monotonic() < deadline, after
    assert grown("mansard_generated_tokens_total") == 7 and grown("mansard_decode_steps_total") == 6
    assert grown(answered) == 1
    assert grown("mansard_time_to_first_token_seconds_count") == grown("mansard_text_seconds_count") == 1
    assert after["mansard_caches"] == 8 and after["mansard_requests_running"] == 0
    assert after['mansard_request_errors_total{code="deadline_exceeded"}'] >= 1


def values(text):
    lines = [line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in lines}


def test_a_model_without_a_tokenizer_takes_numbers(another_server, served_lm, monkeypatch):
    monkeypatch.setattr(served_lm, "_tokenizer", None)
    with another_server() as other, httpx2.Client(base_url=other.url) as http:
        refused(http.post("/v1/completions", json=COMPLETION), 400, "no_tokenizer", "a list of token numbers")
        refused(http.post("/v1/chat/completions", json=CHAT), 400, "no_tokenizer", "no tokenizer")
        numbers = {**COMPLETION, "prompt": [5, 6], "return_token_ids": True, "logprobs": 1}
        choice = http.post("/v1/completions", json=numbers).json()["choices"][0]
        assert choice["text"] == "" and len(choice["token_ids"]) == 2
        assert choice["logprobs"]["tokens"] == [f"token_id:{token}" for token in choice["token_ids"]]
        refused(
            http.post("/v1/completions", json={**numbers, "stop": "a"}), 400, "invalid_value", "tokenizer"
        )


def test_a_model_without_scores_or_a_template(another_server, served_lm, monkeypatch):
    monkeypatch.setattr(served_lm.tokenizer, "chat_template", None)
    with another_server() as other, httpx2.Client(base_url=other.url) as http:
        other.engine.methods.scores = False
        refused(
            http.post("/v1/completions", json={**COMPLETION, "logprobs": 1}),
            400,
            "invalid_value",
            "logprobs=True",
        )
        refused(http.post("/v1/chat/completions", json=CHAT), 400, "no_chat_template", "use /v1/completions")
