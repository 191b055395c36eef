"""Many clients at a time: each stream is what its request gives alone, and no cache is lost."""

from __future__ import annotations

import asyncio
import threading

import numpy as np
import openai
import pytest

from mansard.language.waiting_requests import WaitingRequests

RANDOM = np.random.default_rng(6)
CLIENTS = 32
PROMPTS = [RANDOM.integers(5, 300, int(length)).tolist() for length in RANDOM.integers(1, 50, CLIENTS)]


def request(number):
    """Every other one greedy; the rest drawn, some with a penalty."""
    drawn = {"temperature": 0.9, "top_p": 0.95, "seed": number} if number % 2 else {"temperature": 0}
    extra = {"return_token_ids": True, **({"repetition_penalty": 1.3} if number % 5 == 0 else {})}
    count = 5 + number % 30
    return {"model": "tiny", "prompt": PROMPTS[number], "max_tokens": count, "extra_body": extra, **drawn}


async def streamed(client, number):
    tokens, text = [], ""
    async for chunk in await client.completions.create(stream=True, **request(number)):
        tokens += chunk.choices[0].token_ids
        text += chunk.choices[0].text
    return tokens, text


@pytest.fixture(scope="module")
def alone(client):
    answers = [client.completions.create(**request(n)).choices[0] for n in range(CLIENTS)]
    return [(answer.token_ids, answer.text) for answer in answers]


def test_every_stream_is_what_it_would_be_alone(server, alone):
    async def work():
        async with server.client(openai.AsyncOpenAI) as client:
            return await asyncio.gather(*(streamed(client, n) for n in range(CLIENTS)))

    assert asyncio.run(work()) == alone
    server.wait_idle()


def test_clients_that_go_away_free_their_caches(server, alone):
    before = server.service.metrics.text().decode()

    async def left(client, number, *, stream):
        options = {**request(number), "max_tokens": 90}
        options["extra_body"] = {**options["extra_body"], "ignore_eos": True}
        if not stream:
            task = asyncio.create_task(client.completions.create(**options))
            await asyncio.sleep(0.03)
            task.cancel()
            return
        begun = asyncio.Event()

        async def read():
            async for _ in await client.completions.create(stream=True, **options):
                begun.set()

        # Cancelled while it waits for more, which ends the client's generators: one that is left half read is
        # closed by whichever thread collects it, also while its loop does the same.
        task = asyncio.create_task(read())
        await begun.wait()
        task.cancel()

    async def work():
        async with server.client(openai.AsyncOpenAI) as client:
            gone = [left(client, n, stream=n % 4 > 0) for n in range(CLIENTS)]
            staying = [streamed(client, n) for n in range(8)]
            results = await asyncio.gather(*gone, *staying, return_exceptions=True)
            return results[CLIENTS:]

    assert asyncio.run(work()) == alone[:8]
    server.wait_idle()
    after = server.service.metrics.text().decode()
    assert 'status="499"' in after and after != before


def test_priority_decides_who_waits(server, monkeypatch):
    """A request of high priority overtakes those that wait, by a header or by a field."""
    all_wait, advance = threading.Event(), server.engine.methods.advance
    pop, begun = WaitingRequests.pop, []

    def slowly(*args):
        all_wait.wait(0.05)  # so that the first texts last until all others wait
        return advance(*args)

    def popped(waiting):
        request = pop(waiting)
        if request is not None:
            begun.append(request.wanted.priority)
        return request

    monkeypatch.setattr(server.engine.methods, "advance", slowly)
    monkeypatch.setattr(WaitingRequests, "pop", popped)

    async def work():
        async with server.client(openai.AsyncOpenAI) as client:

            def complete(tokens, priority=None, **options):
                body = {"ignore_eos": True} | ({} if priority is None else {"priority": priority})
                return asyncio.create_task(
                    client.completions.create(
                        model="tiny", prompt=[9], max_tokens=tokens, extra_body=body, **options
                    )
                )

            full = [complete(96) for _ in range(8)]
            while server.engine.active < 8:
                await asyncio.sleep(0.001)
            waiting = [complete(2) for _ in range(8)]
            waiting += [complete(2, extra_headers={"X-Priority": "3"}), complete(2, priority=3)]
            while server.engine.waiting < 10 and not full[0].done():
                await asyncio.sleep(0.001)
            assert server.engine.waiting == 10
            all_wait.set()
            await asyncio.gather(*full, *waiting)

    asyncio.run(work())
    assert begun == [0] * 8 + [3, 3] + [0] * 8
    server.wait_idle()
