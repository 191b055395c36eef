"""The official client, unchanged: every form of request that it has for text."""

from __future__ import annotations

import asyncio

import openai
import pytest

PROMPT = "The quick brown fox"
MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
GREEDY = {"model": "tiny", "temperature": 0}


@pytest.fixture(scope="module")
def text(server):
    """What the engine writes after the prompt."""
    return text_of(server, server.lm.encode(PROMPT), 24)


def text_of(server, ids, count, **options):
    return "".join(token.text for token in server.engine.submit(ids, count, **options))


def chat_ids(server):
    return server.lm.tokenizer.encode_chat(MESSAGES)


def test_the_model_is_listed(client):
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").owned_by == "mansard"
    with pytest.raises(openai.NotFoundError, match="there is no model 'other'"):
        client.models.retrieve("other")


def test_a_completion(client, server, text):
    answer = client.completions.create(prompt=PROMPT, max_tokens=24, **GREEDY)
    choice = answer.choices[0]
    assert (choice.text, choice.finish_reason, choice.logprobs) == (text, "length", None)
    prompt = len(server.lm.encode(PROMPT))
    usage = answer.usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (prompt, 24, prompt + 24)
    assert usage.prompt_tokens_details.cached_tokens <= prompt
    assert answer.object == "text_completion" and answer.model == "tiny"


def test_a_streamed_completion(client, text):
    options = {"include_usage": True}
    chunks = list(
        client.completions.create(prompt=PROMPT, max_tokens=24, stream=True, stream_options=options, **GREEDY)
    )
    assert "".join(chunk.choices[0].text for chunk in chunks[:-1]) == text
    assert chunks[-2].choices[0].finish_reason == "length"
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens == 24
    assert len({chunk.id for chunk in chunks}) == 1


def test_a_chat(client, server):
    expected = text_of(server, chat_ids(server), 20)
    answer = client.chat.completions.create(messages=MESSAGES, max_completion_tokens=20, **GREEDY)
    message = answer.choices[0].message
    assert (message.role, message.content, answer.object) == ("assistant", expected, "chat.completion")
    parts = [
        {**MESSAGES[0], "role": "developer"},
        {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
    ]
    again = client.chat.completions.create(messages=parts, max_tokens=20, **GREEDY)
    assert again.choices[0].message.content == expected
    assert again.usage.prompt_tokens_details.cached_tokens > 0
    back = [*MESSAGES, message, {"role": "user", "content": "And?"}]
    assert client.chat.completions.create(messages=back, max_tokens=3, **GREEDY).choices[0].message.content


def test_a_streamed_chat(client, server):
    expected = text_of(server, chat_ids(server), 20)
    chunks = list(client.chat.completions.create(messages=MESSAGES, max_tokens=20, stream=True, **GREEDY))
    deltas = [chunk.choices[0].delta for chunk in chunks]
    assert deltas[0].role == "assistant" and "".join(delta.content or "" for delta in deltas) == expected
    assert chunks[-1].choices[0].finish_reason == "length"
    stop = expected[8:10]
    with client.chat.completions.stream(messages=MESSAGES, max_tokens=20, stop=stop, **GREEDY) as stream:
        content = stream.get_final_completion().choices[0].message.content
    assert content == expected[: expected.index(stop)]


def test_stop_texts(client, server, text):
    stop = text[4:7]
    answer = client.completions.create(prompt=PROMPT, max_tokens=24, stop=["~~", stop], **GREEDY)
    assert answer.choices[0].text == text[: text.index(stop)]
    assert answer.choices[0].finish_reason == "stop"
    chunks = client.completions.create(prompt=PROMPT, max_tokens=24, stop=stop, stream=True, **GREEDY)
    assert "".join(chunk.choices[0].text for chunk in chunks) == text[: text.index(stop)]
    server.wait_idle()


def test_logprobs_of_a_completion(client, server, text):
    answer = client.completions.create(prompt=PROMPT, max_tokens=24, logprobs=3, **GREEDY).choices[0]
    logprobs = answer.logprobs
    assert answer.text == text and len(logprobs.tokens) == 24
    scored = list(server.engine.submit(server.lm.encode(PROMPT), 24, scored=True))
    assert logprobs.token_logprobs == pytest.approx([token.score.logprob for token in scored], abs=1e-4)
    for token, logprob, top in zip(
        logprobs.tokens, logprobs.token_logprobs, logprobs.top_logprobs, strict=True
    ):
        assert 0 < len(top) <= 3 and top[token] == logprob == max(top.values())
    assert logprobs.text_offset == sorted(logprobs.text_offset)
    chunks = client.completions.create(prompt=PROMPT, max_tokens=24, logprobs=3, stream=True, **GREEDY)
    streamed = [chunk.choices[0].logprobs for chunk in chunks]
    assert [one.tokens[0] for one in streamed] == logprobs.tokens


def test_logprobs_of_a_chat(client):
    options = {"messages": MESSAGES, "max_tokens": 6, "logprobs": True, "top_logprobs": 4, **GREEDY}
    content = client.chat.completions.create(**options).choices[0].logprobs.content
    assert len(content) == 6
    for token in content:
        assert len(token.top_logprobs) == 4 and token.top_logprobs[0].token == token.token
        assert token.bytes is None or bytes(token.bytes).decode() == token.token
    chunks = [chunk.choices[0].logprobs for chunk in client.chat.completions.create(stream=True, **options)]
    assert [part.token for one in chunks if one for part in one.content] == [part.token for part in content]
    none = client.chat.completions.create(**{**options, "top_logprobs": None}).choices[0].logprobs.content
    assert [token.logprob for token in none] == pytest.approx([token.logprob for token in content], abs=1e-4)
    assert all(token.top_logprobs == [] for token in none)


def test_several_prompts_and_choices(client, server, text):
    ids = server.lm.encode(PROMPT)
    answer = client.completions.create(prompt=[PROMPT, "lazy"], n=2, max_tokens=8, **GREEDY)
    texts = [choice.text for choice in answer.choices]
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert texts[0] == texts[1] and texts[2] == texts[3] and text.startswith(texts[0])
    numbers = client.completions.create(prompt=[ids, ids[:3]], max_tokens=8, **GREEDY)
    assert numbers.choices[0].text == texts[0]
    drawn = {"model": "tiny", "messages": MESSAGES, "max_tokens": 8, "n": 3, "seed": 5, "top_p": 0.9}
    answers = [choice.message.content for choice in client.chat.completions.create(**drawn).choices]
    assert len(set(answers)) == 3
    streamed = ["", "", ""]
    for chunk in client.chat.completions.create(stream=True, **drawn):
        streamed[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert streamed == answers


def test_extensions(client, server):
    ids = server.lm.encode(PROMPT)
    extra = {
        "top_k": 7,
        "min_p": 0.01,
        "repetition_penalty": 1.2,
        "ignore_eos": True,
        "return_token_ids": True,
    }
    answers = [
        client.completions.create(model="tiny", prompt=ids, max_tokens=9, seed=3, extra_body=extra).choices[0]
        for _ in range(2)
    ]
    assert answers[0].token_ids == answers[1].token_ids and len(answers[0].token_ids) == 9
    other = client.completions.create(model="tiny", prompt=ids, max_tokens=9, extra_body=extra).choices[0]
    assert other.token_ids != answers[0].token_ids  # without a seed every answer is another


def test_a_context_that_is_full_ends_the_text(client, server):
    answer = client.completions.create(prompt=[[9] * 90], max_tokens=50, **GREEDY)
    assert (answer.usage.completion_tokens, answer.choices[0].finish_reason) == (7, "length")
    whole = client.chat.completions.create(messages=MESSAGES, **GREEDY)
    assert whole.usage.total_tokens == server.lm.description.context + 1


def test_the_client_of_asyncio(server):
    async def work():
        async with server.client(openai.AsyncOpenAI) as client:
            stream = await client.completions.create(prompt=PROMPT, max_tokens=5, stream=True, **GREEDY)
            return "".join([chunk.choices[0].text async for chunk in stream])

    assert asyncio.run(work()) == text_of(server, server.lm.encode(PROMPT), 5)
