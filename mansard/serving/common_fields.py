"""Fields that completions and chat completions have in common."""

from __future__ import annotations

import secrets
from typing import Any

from mansard.arguments import shown
from mansard.errors import InputError
from mansard.language.generation import Sampling
from mansard.language.stop_texts import checked_stop
from mansard.plan.sampling_inputs import CANDIDATES
from mansard.runtime.calls.limits import MAX_SECONDS
from mansard.serving.api_errors import ApiError, wrong
from mansard.serving.fields import Fields
from mansard.serving.options import ServerOptions
from mansard.serving.text_job import Headers

PRIORITY, DEADLINE = "x-priority", "x-deadline"
"""Headers that say what the fields ``priority`` and ``deadline`` say, which count more."""
MOST_STOP_TEXTS = 16


def check_model(fields: Fields, options: ServerOptions) -> None:
    """Raise ApiError unless the request names the model that is served."""
    name = fields.text("model")
    if name is None:
        raise ApiError(
            400, f"the field model is missing; this server has {options.name!r}", "model", "missing"
        )
    if name != options.name:
        raise ApiError(
            404,
            f"there is no model {shown(name)}; this server has {options.name!r}",
            "model",
            "model_not_found",
        )


def common(fields: Fields, headers: Headers, options: ServerOptions, prompts: int) -> dict[str, Any]:
    """The arguments of a `TextJob` that stand in these fields. ``prompts`` is the number of prompts."""
    choices = fields.integer("n", 1, options.max_texts) or 1
    if choices * prompts > options.max_texts:
        raise wrong("n", f"{prompts} prompts with n={choices} are more than {options.max_texts} texts")
    stream = fields.boolean("stream")
    stream_options = Fields(fields.object("stream_options"))
    if fields.has("stream_options") and not stream:
        raise wrong("stream_options", "stream_options are those of a stream: set stream=true")
    include_usage = stream_options.boolean("include_usage")
    stream_options.ignored("include_obfuscation")
    stream_options.finish()
    refused(fields)
    return {
        "choices": choices,
        "sampling": _sampling(fields),
        "stop": _stop(fields),
        "stop_at_end": not fields.boolean("ignore_eos"),
        "stream": stream,
        "include_usage": include_usage,
        "token_ids": fields.boolean("return_token_ids"),
        "priority": int(_either(fields, headers, "priority", PRIORITY, -(2**31), 2**31 - 1) or 0),
        "deadline": _either(fields, headers, "deadline", DEADLINE, 0.0, MAX_SECONDS),
    }


def refused(fields: Fields) -> None:
    """Fields that OpenAI's API has and that are not supported, accepted where they change nothing."""
    for name in ("presence_penalty", "frequency_penalty"):
        fields.neutral(name, lambda value: value == 0, "use repetition_penalty")
    fields.neutral("logit_bias", lambda value: value == {}, "the logits of single tokens cannot be changed")
    fields.ignored("user", "metadata", "safety_identifier", "prompt_cache_key", "service_tier", "store")


def _sampling(fields: Fields) -> Sampling:
    seed = fields.integer("seed")
    return Sampling(
        temperature=fields.number("temperature", 1.0, 0.0, 100.0),
        top_p=fields.number("top_p", 1.0, 0.0, 1.0),
        min_p=fields.number("min_p", 0.0, 0.0, 1.0),
        repetition_penalty=fields.number("repetition_penalty", 1.0, 0.01, 100.0),
        top_k=fields.integer("top_k", 0, CANDIDATES) or 0,
        seed=secrets.randbits(31) if seed is None else seed & 0x7FFFFFFF,
    )


def _stop(fields: Fields) -> tuple[str, ...]:
    value = fields.value("stop")
    if value is None or value == []:
        return ()
    try:
        stop = checked_stop(value)
    except InputError as error:
        raise wrong("stop", str(error)) from error
    if len(stop) > MOST_STOP_TEXTS:
        raise wrong("stop", f"stop has {len(stop)} texts; at most {MOST_STOP_TEXTS} may end a text")
    return stop


def _either(
    fields: Fields, headers: Headers, name: str, header: str, low: float, high: float
) -> float | None:
    """A number in a field, or else in a header."""
    whole = isinstance(low, int)
    if fields.has(name):
        return fields.integer(name, int(low), int(high)) if whole else fields.number(name, 0.0, low, high)
    fields.ignored(name)
    text = headers.get(header)
    if text is None:
        return None
    try:
        number = int(text) if whole else float(text)
    except ValueError:
        number = float("nan")
    if not low <= number <= high:
        raise wrong(header, f"the header {header}: {shown(text)} is not a number in {low:g} to {high:g}")
    return number
