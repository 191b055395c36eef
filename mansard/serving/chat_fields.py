"""``POST /v1/chat/completions``."""

from __future__ import annotations

from typing import Any

from mansard.arguments import shown
from mansard.plan.sampling_inputs import RANKED
from mansard.serving.api_errors import ApiError, wrong
from mansard.serving.common_fields import check_model, common
from mansard.serving.fields import Fields
from mansard.serving.options import ServerOptions
from mansard.serving.prompts import PromptReader
from mansard.serving.text_job import Body, Headers, TextJob

_ROLES = ("system", "developer", "user", "assistant", "tool")
_RESERVED = ("messages", "tools", "documents", "add_generation_prompt")
"""Variables of a chat template that are not for requests to set."""


async def chat_job(body: Body, headers: Headers, options: ServerOptions, reader: PromptReader) -> TextJob:
    """What a request for chat completions asks for. Raises ApiError for whatever is wrong with it."""
    fields = Fields(body)
    check_model(fields, options)
    messages = _messages(fields.value("messages"))
    settings = common(fields, headers, options, 1)
    template = fields.object("chat_template_kwargs")
    for name in _RESERVED:
        if name in template:
            raise wrong("chat_template_kwargs", f"chat_template_kwargs cannot set {name!r}")
    _refused(fields)
    count, older = fields.integer("max_completion_tokens", 1), fields.integer("max_tokens", 1)
    ranked = fields.integer("top_logprobs", 0, RANKED)
    logprobs = fields.boolean("logprobs")
    if ranked is not None and not logprobs:
        raise wrong("top_logprobs", "top_logprobs needs logprobs=true")
    fields.finish()
    return TextJob(
        "chat",
        [await reader.chat(messages, template)],
        count=older if count is None else count,
        ranked=(ranked or 0) if logprobs else None,
        **settings,
    )


def _refused(fields: Fields) -> None:
    for name in ("tools", "functions"):
        fields.neutral(name, lambda value: value == [], "answers are text and call nothing")
    for name in ("tool_choice", "function_call"):
        fields.neutral(name, lambda value: value in ("none", "auto"), "answers are text and call nothing")
    fields.neutral("response_format", lambda value: value == {"type": "text"}, "answers are plain text")
    fields.neutral("modalities", lambda value: value == ["text"], "answers are text")
    for name in ("audio", "prediction", "web_search_options", "reasoning_effort", "verbosity", "moderation"):
        fields.neutral(name, lambda _: False, "the model has nothing of that kind")
    fields.ignored("parallel_tool_calls", "prompt_cache_options", "prompt_cache_retention")


def _messages(value: Any) -> list[dict[str, Any]]:
    if value is None:
        raise wrong("messages", "the field messages is missing", "missing")
    if not isinstance(value, list) or not value:
        raise wrong(
            "messages", f"messages={shown(value)} is not a list of at least one message", "invalid_type"
        )
    return [_message(message, f"messages[{number}]") for number, message in enumerate(value)]


def _message(value: Any, place: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise wrong(place, f"{place}={shown(value)} is not an object with role and content", "invalid_type")
    given = {name: part for name, part in value.items() if part is not None}
    role = given.pop("role", None)
    if role not in _ROLES:
        raise wrong(f"{place}.role", f"{place}.role={shown(role)} is not one of {', '.join(_ROLES)}")
    message = {
        "role": "system" if role == "developer" else role,
        "content": _content(given.pop("content", None), f"{place}.content"),
    }
    for name in ("name", "tool_call_id"):
        if name in given:
            text = given.pop(name)
            if not isinstance(text, str):
                raise wrong(
                    f"{place}.{name}", f"{place}.{name}={shown(text)} is not a string", "invalid_type"
                )
            message[name] = text
    for name, part in given.items():
        if part not in ([], ""):
            raise ApiError(
                400,
                f"{place}.{name} is not supported: a message has role, content, name and tool_call_id",
                f"{place}.{name}",
                "unsupported_parameter",
            )
    return message


def _content(value: Any, place: str) -> str:
    """A text, or the texts of a list of parts in order."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or not value:
        raise wrong(place, f"{place}={shown(value)} is not a text or a list of parts", "invalid_type")
    texts = []
    for number, part in enumerate(value):
        text = part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None
        if not isinstance(text, str):
            raise wrong(
                f"{place}[{number}]",
                f'{place}[{number}]={shown(part)} is not supported: parts are {{"type": "text", "text": …}}',
                "unsupported_content",
            )
        texts.append(text)
    return "".join(texts)
