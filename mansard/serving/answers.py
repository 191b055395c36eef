"""Answers as JSON values: whole ones, and the chunks of a stream."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from mansard.language.generation import Score, Token
from mansard.language.text_request import FinishReason, TextRequest
from mansard.serving.text_job import TextJob
from mansard.serving.token_names import TokenNames

IMPOSSIBLE = -9999.0
"""The log-probability that stands for minus infinity, which JSON has no number for."""


@dataclass
class Choice:
    """One text so far. ``before`` is the token before the next one."""

    before: int
    text: str = ""
    tokens: list[int] = field(default_factory=list)
    scores: list[dict[str, Any]] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)


class Answers:
    """Makes the JSON of one request, `TextJob.kind` says in which form."""

    def __init__(self, job: TextJob, model: str, names: TokenNames) -> None:
        self._job, self._names = job, names
        chat = job.kind == "chat"
        self._head = {
            "id": ("chatcmpl-" if chat else "cmpl-") + uuid.uuid4().hex,
            "created": int(time.time()),
            "model": model,
        }
        self._choices = [Choice(job.prompt(index)[-1]) for index in range(job.texts)]

    def whole(self, requests: Sequence[TextRequest]) -> dict[str, Any]:
        """The answer that is not streamed, when all texts are complete."""
        choices = []
        for index, (choice, request) in enumerate(zip(self._choices, requests, strict=True)):
            logprobs = self._logprobs(choice.scores, choice.offsets)
            ids = {"token_ids": choice.tokens} if self._job.token_ids else {}
            content: dict[str, Any] = {"text": choice.text}
            if self._job.kind == "chat":
                content = {"message": {"role": "assistant", "content": choice.text, "refusal": None}}
            choices.append(
                {
                    "index": index,
                    **content,
                    "logprobs": logprobs,
                    "finish_reason": request.finish_reason,
                    **ids,
                }
            )
        return self._body(choices, stream=False, usage=self._usage(requests))

    def first(self) -> list[dict[str, Any]]:
        """What a stream begins with."""
        if self._job.kind != "chat":
            return []
        role = {"role": "assistant", "content": "", "refusal": None}
        return [
            self._chunk({"index": index, "delta": role, "logprobs": None, "finish_reason": None})
            for index in range(self._job.texts)
        ]

    def add(self, index: int, token: Token, finish: FinishReason | None) -> dict[str, Any] | None:
        """Note a token of a choice; the chunk that tells of it, None if there is nothing to tell."""
        choice, chat = self._choices[index], self._job.kind == "chat"
        offset = len(choice.text)
        choice.text += token.text
        choice.tokens.append(token.id)
        scores = []
        if token.score is not None and self._job.ranked is not None:
            scores = [self._scored(token.id, token.score, choice.before)]
            choice.scores += scores
            choice.offsets.append(offset)
        choice.before = token.id
        if not (token.text or scores or finish or self._job.token_ids):
            return None
        content: dict[str, Any] = {"text": token.text}
        if chat:
            content = {"delta": {"content": token.text} if token.text else {}}
        ids = {"token_ids": [token.id]} if self._job.token_ids else {}
        logprobs = self._logprobs(scores, [offset]) if scores else None
        return self._chunk({"index": index, **content, "logprobs": logprobs, "finish_reason": finish, **ids})

    def last(self, requests: Sequence[TextRequest]) -> list[dict[str, Any]]:
        """What a stream ends with."""
        return [self._body([], stream=True, usage=self._usage(requests))] if self._job.include_usage else []

    def _chunk(self, choice: dict[str, Any]) -> dict[str, Any]:
        return self._body([choice], stream=True, usage=None)

    def _body(self, choices: list[dict[str, Any]], *, stream: bool, usage: Any) -> dict[str, Any]:
        kind = "text_completion"
        if self._job.kind == "chat":
            kind = "chat.completion.chunk" if stream else "chat.completion"
        body = {**self._head, "object": kind, "system_fingerprint": None, "choices": choices}
        return {**body, "usage": usage} if not stream or self._job.include_usage else body

    def _usage(self, requests: Sequence[TextRequest]) -> dict[str, Any]:
        prompt = sum(map(len, self._job.prompts))
        generated = sum(request.generated for request in requests)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": generated,
            "total_tokens": prompt + generated,
            "prompt_tokens_details": {"cached_tokens": sum(request.reused for request in requests)},
        }

    def _scored(self, token: int, score: Score, before: int) -> dict[str, Any]:
        """A token and the most likely ones, as chat completions have them."""
        ranked = score.ranked[: self._job.ranked]
        named = self._named(token, score.logprob, before)
        return {**named, "top_logprobs": [self._named(*each, before) for each in ranked]}

    def _named(self, token: int, logprob: float, before: int) -> dict[str, Any]:
        text = self._names.text(token, before)
        return {"token": text, "logprob": max(logprob, IMPOSSIBLE), "bytes": self._names.to_bytes(text)}

    def _logprobs(self, scores: Sequence[dict[str, Any]], offsets: Sequence[int]) -> dict[str, Any] | None:
        if self._job.ranked is None:
            return None
        if self._job.kind == "chat":
            return {"content": list(scores), "refusal": None}
        tops = [{top["token"]: top["logprob"] for top in score["top_logprobs"]} for score in scores]
        return {
            "tokens": [score["token"] for score in scores],
            "token_logprobs": [score["logprob"] for score in scores],
            "top_logprobs": tops if self._job.ranked else None,
            "text_offset": list(offsets),
        }
