"""The model that a server serves, and the texts that it is generating."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from mansard.errors import MansardError
from mansard.language.batch_engine import BatchEngine
from mansard.language.generation import Token
from mansard.language.language_model import LanguageModel
from mansard.language.text_request import TextRequest
from mansard.serving.api_errors import ApiError, from_error, unavailable
from mansard.serving.metrics import Metrics
from mansard.serving.options import ServerOptions
from mansard.serving.prompts import PromptReader
from mansard.serving.text_job import TextJob
from mansard.serving.token_names import TokenNames

_LONGEST_RETRY = 60
Step = tuple[int, Token]
"""A choice's index, and its next token."""


class TextService:
    """Submits what requests ask for to the engine, and keeps account of it."""

    def __init__(self, lm: LanguageModel, options: ServerOptions) -> None:
        self.lm, self.options = lm, options
        self.engine = BatchEngine(lm.model, lm.tokenizer, options.max_waiting)
        self.reader = PromptReader(lm.description, lm.tokenizer)
        self.names = TokenNames(lm.tokenizer)
        self.metrics = Metrics(self.engine)
        self.draining = False
        """Whether the server is being shut down: no text is begun any more."""
        self._running: set[TextRequest] = set()

    def begin(self, job: TextJob) -> list[TextRequest]:
        """Submit all texts of a job, or none. Raises ApiError."""
        if self.draining:
            raise unavailable(self.retry_after())
        requests: list[TextRequest] = []
        try:
            for index in range(job.texts):
                prompt = job.prompt(index)
                requests.append(
                    self.engine.submit(
                        prompt,
                        self.engine.description.context if job.count is None else job.count,
                        job.sampling_of(index),
                        stop_at_end=job.stop_at_end,
                        stop=job.stop,
                        scored=job.ranked is not None,
                        priority=job.priority,
                        deadline=job.deadline,
                    )
                )
        except MansardError as error:
            for request in requests:
                request.cancel()
            raise self.told(error) from error
        self._running.update(requests)
        return requests

    def end(self, requests: Sequence[TextRequest]) -> None:
        """The client has got its texts, or went away: their caches are free after the step in flight."""
        for request in requests:
            request.cancel()
            self._running.discard(request)
            self.metrics.count_text(request)

    async def steps(self, requests: Sequence[TextRequest]) -> AsyncGenerator[Step, None]:
        """The tokens of all texts as they come. Raises ApiError."""
        try:
            async with aclosing(_merged(requests)) as merged:
                async for step in merged:
                    yield step
        except MansardError as error:
            raise self.told(error) from error

    def cancel_all(self) -> None:
        """End all texts that are being generated: their clients get an error."""
        for request in self._running:
            request.cancel()

    def told(self, error: MansardError) -> ApiError:
        """What a client is told of an error."""
        return from_error(error, retry_after=self.retry_after(), draining=self.draining)

    def retry_after(self) -> int:
        """Seconds after which there may be room for a request, from how long texts took so far."""
        rounds = (self.engine.waiting + 1) / self.engine.description.sequences
        return max(1, min(_LONGEST_RETRY, round(rounds * self.metrics.mean_text_seconds)))

    def close(self) -> None:
        """Stop the engine; the model stays open."""
        self.engine.close()


async def _merged(requests: Sequence[TextRequest]) -> AsyncGenerator[Step, None]:
    """Tokens of several texts in the order in which they come; the first error ends all."""
    if len(requests) == 1:
        async for token in requests[0]:
            yield 0, token
        return
    steps: asyncio.Queue[Step | Exception | None] = asyncio.Queue()

    async def follow(index: int, request: TextRequest) -> None:
        try:
            async for token in request:
                steps.put_nowait((index, token))
            steps.put_nowait(None)
        except Exception as error:
            steps.put_nowait(error)

    tasks = [asyncio.create_task(follow(*each)) for each in enumerate(requests)]
    try:
        left = len(tasks)
        while left:
            step = await steps.get()
            if isinstance(step, Exception):
                raise step
            if step is None:
                left -= 1
            else:
                yield step
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
