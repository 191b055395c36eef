"""32 clients that stream, leave, ask wrongly and set deadlines, over and over: no wrong and no lost token.

``make serve-soak`` makes many more requests (``MANSARD_SERVE_REQUESTS``).
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections import Counter

import openai

CLIENTS = 32
REQUESTS = int(os.environ.get("MANSARD_SERVE_REQUESTS", "64"))
KINDS = ("stream", "stream", "stream", "stream", "whole", "several", "leave", "late", "wrong")
MESSAGES = [
    {"role": "system", "content": "The quick brown fox jumps over the lazy dog"},
    {"role": "user", "content": "snake_case"},
]


def requests_of(chance):
    """Forty requests: prompts that begin equally and others, greedy and drawn, with stop texts and scores."""
    shared = [chance.randrange(5, 300) for _ in range(24)]
    for number in range(40):
        own = [chance.randrange(5, 300) for _ in range(chance.randint(1, 40))]
        extra = {"return_token_ids": True}
        if number % 7 == 0:
            extra["repetition_penalty"] = 1.3
        wanted = {
            "model": "tiny",
            "prompt": shared + own[:20] if number % 3 == 0 else own,
            "max_tokens": chance.randint(1, 40),
            "temperature": 0 if number % 2 else 0.8,
            "seed": number,
            "extra_body": extra,
        }
        if number % 4 == 0:
            wanted["stop"] = ["e", "the ", "12"][: 1 + number % 3]
        if number % 5 == 0:
            wanted["logprobs"] = 2
        yield wanted


async def streamed(client, wanted, leave_after=None):
    tokens, text = [], ""
    stream = await client.completions.create(stream=True, **wanted)
    async for chunk in stream:
        tokens += chunk.choices[0].token_ids
        text += chunk.choices[0].text
        if leave_after is not None and len(tokens) > leave_after:
            break
    await stream.close()
    return tokens, text


async def one(client, chance, wanted, expected, counts):
    """One request of a random kind; its outcome is checked and counted."""
    kind = chance.choice(KINDS)
    tokens, _ = expected
    if kind == "stream":
        assert await streamed(client, wanted) == expected, wanted
    elif kind in ("whole", "several"):
        n = 1 if kind == "whole" else 2
        answer = await client.completions.create(**{**wanted, "prompt": [wanted["prompt"]] * n})
        assert [(c.token_ids, c.text) for c in answer.choices] == [expected] * n, wanted
        counts["tokens"] += len(tokens) * (n - 1)
    elif kind == "leave":
        part, _ = await streamed(client, wanted, leave_after=chance.randint(0, 10))
        assert tokens[: len(part)] == part
    elif kind == "late":
        deadline = chance.choice([0.001, 0.01, 0.05])
        late = {**wanted, "extra_body": {**wanted["extra_body"], "deadline": deadline}}
        try:
            assert await streamed(client, late) == expected, wanted
            kind = "in time"
        except openai.APIError as error:
            assert "was not complete" in str(error)
    else:
        try:
            await client.chat.completions.create(
                model="tiny", messages=MESSAGES, temperature=-chance.random()
            )
            raise AssertionError("a wrong request was accepted")
        except openai.BadRequestError as error:
            assert "is not in 0 to 100" in str(error)
    counts[kind] += 1
    counts["tokens"] += len(tokens) if kind in ("stream", "whole", "several", "in time") else 0


def test_no_token_is_wrong_or_lost(server, client):
    chance = random.Random(11)
    wanted = list(requests_of(chance))
    expected = []
    for each in wanted:
        choice = client.completions.create(**each).choices[0]
        expected.append((choice.token_ids, choice.text))
    counts = Counter()

    async def person(client, number):
        chance = random.Random(number)
        for _ in range(REQUESTS // CLIENTS):
            index = chance.randrange(len(wanted))
            await one(client, chance, wanted[index], expected[index], counts)

    async def work():
        async with server.client(openai.AsyncOpenAI) as client:
            await asyncio.gather(*(person(client, number) for number in range(CLIENTS)))

    began = time.monotonic()
    asyncio.run(work())
    seconds = time.monotonic() - began
    server.wait_idle()
    stats = server.engine.stats
    assert sum(counts.values()) - counts["tokens"] == REQUESTS // CLIENTS * CLIENTS
    assert not server.service._running
    print(
        f"\n{dict(sorted(counts.items()))} in {seconds:.1f} s; engine: {stats.generated_tokens} tokens in "
        f"{stats.steps} steps, {stats.prompt_tokens} tokens of prompts read, {stats.reused_tokens} reused"
    )
