"""``POST /v1/completions``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mansard.arguments import shown
from mansard.plan.sampling_inputs import RANKED
from mansard.serving.api_errors import wrong
from mansard.serving.common_fields import check_model, common
from mansard.serving.fields import Fields
from mansard.serving.options import ServerOptions
from mansard.serving.prompts import PromptReader
from mansard.serving.text_job import Body, Headers, TextJob

DEFAULT_TOKENS = 16
"""As OpenAI's API has it."""


async def completion_job(
    body: Body, headers: Headers, options: ServerOptions, reader: PromptReader
) -> TextJob:
    """What a request for completions asks for. Raises ApiError for whatever is wrong with it."""
    fields = Fields(body)
    check_model(fields, options)
    given = _prompts(fields, options)
    settings = common(fields, headers, options, len(given))
    fields.neutral("echo", lambda value: value is False, "the prompt is not repeated")
    fields.neutral("suffix", lambda value: value == "", "text is only written at the end")
    fields.neutral("best_of", lambda value: value == settings["choices"], "all n texts are returned")
    count = fields.integer("max_tokens", 1)
    ranked = fields.integer("logprobs", 0, RANKED)
    fields.finish()
    prompts = [await reader.tokens(prompt) for prompt in given]
    return TextJob(
        "completion",
        prompts,
        count=DEFAULT_TOKENS if count is None else count,
        ranked=ranked,
        **settings,
    )


def _prompts(fields: Fields, options: ServerOptions) -> Sequence[str | list[int]]:
    """One prompt or several, each a text or token numbers."""
    value = fields.value("prompt")
    if value is None:
        raise wrong("prompt", "the field prompt is missing", "missing")
    if isinstance(value, str) or _numbers(value):
        return [value]
    if isinstance(value, list) and value and all(isinstance(v, str) or _numbers(v) for v in value):
        if len(value) > options.max_texts:
            raise wrong("prompt", f"{len(value)} prompts are more than {options.max_texts} texts")
        return value
    raise wrong(
        "prompt",
        f"prompt={shown(value)} is not a text, a list of token numbers, or a list of these",
        "invalid_type",
    )


def _numbers(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(number) is int for number in value)
