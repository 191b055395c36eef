"""From what a request gives to the tokens of a prompt."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from mansard.errors import InputError
from mansard.language.description import Description
from mansard.language.tokenizer import Tokenizer
from mansard.serving.api_errors import ApiError, wrong

SHORT = 16384
"""Characters that are turned into tokens without leaving the event loop, which takes a few milliseconds."""
Result = TypeVar("Result")


class PromptReader:
    """Tokenises prompts for a model; long ones on a thread, so that other requests go on."""

    def __init__(self, description: Description, tokenizer: Tokenizer | None) -> None:
        self._description, self._tokenizer = description, tokenizer

    async def tokens(self, prompt: str | list[int]) -> list[int]:
        """The tokens of a text, or token numbers as they are, checked."""
        if isinstance(prompt, list):
            return self._checked(prompt, "prompt")
        tokenizer = self._need_tokenizer("prompt")
        return self._checked(
            await self._run(len(prompt), lambda: tokenizer.encode(prompt), "prompt"), "prompt"
        )

    async def chat(self, messages: Sequence[Mapping[str, Any]], template: Mapping[str, Any]) -> list[int]:
        """The tokens of the prompt that the model's template makes of messages."""
        tokenizer = self._need_tokenizer("messages")
        if tokenizer.chat_template is None:
            raise ApiError(
                400,
                "the model has no chat template: use /v1/completions",
                "messages",
                "no_chat_template",
            )
        length = sum(len(message["content"]) for message in messages)
        ids = await self._run(length, lambda: tokenizer.encode_chat(messages, **template), "messages")
        return self._checked(ids, "messages")

    async def _run(self, length: int, work: Callable[[], Result], param: str) -> Result:
        try:
            return work() if length <= SHORT else await asyncio.to_thread(work)
        except InputError as error:
            raise wrong(param, str(error)) from error

    def _need_tokenizer(self, param: str) -> Tokenizer:
        if self._tokenizer is None:
            raise wrong(
                param, "the model has no tokenizer: a prompt is a list of token numbers", "no_tokenizer"
            )
        return self._tokenizer

    def _checked(self, ids: list[int], param: str) -> list[int]:
        context = self._description.context
        if not ids:
            raise wrong(param, "the prompt is empty: it needs at least one token")
        if len(ids) > context:
            raise wrong(
                param,
                f"the prompt has {len(ids)} tokens; the model's cache holds {context}",
                "context_length_exceeded",
            )
        try:
            self._description.check_tokens(ids)
        except InputError as error:
            raise wrong(param, str(error)) from error
        return ids
