"""How fast a language model is: time to the first token, prompts read and tokens written a second."""

from __future__ import annotations

import random
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from mansard.errors import InputError
from mansard.language.language_model import LanguageModel
from mansard.language.text_request import TextRequest

_FIRST_SEED = 1


@dataclass(frozen=True)
class Measurement:
    """Of ``concurrency`` texts requested at once, each of ``prompt`` tokens and ``new_tokens`` new ones.

    ``first_token_s`` and ``last_first_token_s`` are the median and the longest time to a text's first token,
    the queue included; ``prompt_rate`` is tokens of prompts a second while prompts are read, ``text_rate``
    the median of the texts' new tokens a second after the first, ``total_rate`` all new tokens a second over
    the whole run of ``seconds``.
    """

    sequences: int
    concurrency: int
    prompt: int
    new_tokens: int
    first_token_s: float
    last_first_token_s: float
    prompt_rate: float
    text_rate: float
    total_rate: float
    seconds: float


def measure(lm: LanguageModel, prompt: int, concurrency: int, new_tokens: int, runs: int = 3) -> Measurement:
    """Measure random prompts, after one run that is not counted; the run with the median total rate counts.

    A model for one sequence generates as `LanguageModel.generate` does, one text after another. Raises
    InputError for texts that the context does not hold.
    """
    context = lm.description.context
    if prompt + new_tokens > context + 1:
        raise InputError(
            f"{prompt} tokens and {new_tokens} new ones do not fit the context of {context} positions"
        )
    run = _one_by_one if lm.description.sequences == 1 else _together
    chance = random.Random(_FIRST_SEED)
    results = []
    for number in range(runs + 1):
        vocabulary = range(lm.description.vocabulary)
        prompts = [chance.choices(vocabulary, k=prompt) for _ in range(concurrency)]
        if number:
            results.append(run(lm, prompts, new_tokens))
        else:
            run(lm, prompts, min(new_tokens, 2))
    return sorted(results, key=lambda result: result.total_rate)[len(results) // 2]


def _together(lm: LanguageModel, prompts: list[list[int]], new_tokens: int) -> Measurement:
    engine = lm.engine()
    stats = engine.stats
    read, reading = stats.prompt_tokens, stats.prompt_seconds
    began = time.perf_counter()
    requests = [engine.submit(prompt, new_tokens, stop_at_end=False) for prompt in prompts]
    with ThreadPoolExecutor(len(requests)) as threads:
        list(threads.map(_read, requests))
    seconds = time.perf_counter() - began
    times = [request.times for request in requests]
    return _measurement(
        lm,
        prompts,
        new_tokens,
        [each.first_token - each.submitted for each in times],
        [each.last_token - each.first_token for each in times],
        (stats.prompt_tokens - read) / (stats.prompt_seconds - reading),
        seconds,
    )


def _one_by_one(lm: LanguageModel, prompts: list[list[int]], new_tokens: int) -> Measurement:
    first, writing, reading = [], [], 0.0
    began = time.perf_counter()
    for prompt in prompts:
        waited = time.perf_counter() - began
        for _ in lm.generate(prompt, new_tokens, stop_at_end=False):
            pass
        first.append(waited + lm.stats.first_token)
        writing.append(lm.stats.total - lm.stats.first_token)
        reading += lm.stats.first_token
    seconds = time.perf_counter() - began
    rate = sum(map(len, prompts)) / reading
    return _measurement(lm, prompts, new_tokens, first, writing, rate, seconds)


def _measurement(
    lm: LanguageModel,
    prompts: list[list[int]],
    new_tokens: int,
    first: list[float],
    writing: list[float],
    prompt_rate: float,
    seconds: float,
) -> Measurement:
    rates = [(new_tokens - 1) / each for each in writing if each > 0 and new_tokens > 1]
    return Measurement(
        lm.description.sequences,
        len(prompts),
        len(prompts[0]),
        new_tokens,
        statistics.median(first),
        max(first),
        prompt_rate,
        statistics.median(rates) if rates else 0.0,
        len(prompts) * new_tokens / seconds,
        seconds,
    )


def _read(request: TextRequest) -> None:
    for _ in request:
        pass
