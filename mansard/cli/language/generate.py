"""``mansard generate`` and ``mansard chat``: text from a language model."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mansard.cli.compilation.quantisation import GroupSizeOption, QuantizeActivationsOption
from mansard.cli.language.options import (
    CacheTypeOption,
    ContextOption,
    MemoryOption,
    MethodDeviceOption,
    MinPOption,
    ModelArgument,
    PenaltyOption,
    QuantizeOption,
    SeedOption,
    StopOption,
    TemperatureOption,
    TokenizerOption,
    TokensOption,
    TopKOption,
    TopPOption,
    opened,
    quantisation,
)
from mansard.cli.language.speculation import DraftDeviceOption, DraftOption, TraceOption, write_trace
from mansard.cli.models import DeviceOption, TrustedKeysOption
from mansard.cli.output import JsonOption, Output

if TYPE_CHECKING:
    from mansard.language import LanguageModel


def generate(
    model: ModelArgument,
    prompt: Annotated[str, typer.Argument(help="The text to go on with; - reads it from standard input.")],
    max_new_tokens: TokensOption = 256,
    temperature: TemperatureOption = 0.0,
    top_k: TopKOption = 0,
    top_p: TopPOption = 1.0,
    min_p: MinPOption = 0.0,
    repetition_penalty: PenaltyOption = 1.0,
    seed: SeedOption = 0,
    stop: StopOption = None,
    chat: Annotated[
        bool, typer.Option("--chat", help="Put the prompt into the model's chat template, as a question.")
    ] = False,
    device: DeviceOption = None,
    context: ContextOption = None,
    cache_dtype: CacheTypeOption = None,
    quantize: QuantizeOption = None,
    quantize_activations: QuantizeActivationsOption = False,
    group_size: GroupSizeOption = None,
    memory: MemoryOption = None,
    method_device: MethodDeviceOption = None,
    tokenizer: TokenizerOption = None,
    trusted_key: TrustedKeysOption = None,
    draft: DraftOption = None,
    draft_device: DraftDeviceOption = None,
    trace: TraceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Generate text after a prompt, as it comes."""
    from mansard.language.speculation.trace import CallTrace

    text = sys.stdin.read() if prompt == "-" else prompt
    with (
        Output(as_json) as out,
        opened(
            model,
            device,
            context,
            cache_dtype,
            quantize=quantisation(quantize, quantize_activations, group_size),
            draft=draft,
            draft_devices=draft_device,
            memory=memory,
            method_devices=method_device,
            tokenizer=tokenizer,
            trusted_keys=trusted_key,
            of_texts=True,
        ) as lm,
    ):
        lm.trace = None if trace is None else CallTrace()
        asked: Any = _question(lm, [{"role": "user", "content": text}]) if chat else text
        tokens, pieces = [], []
        for token in lm.generate(
            asked,
            max_new_tokens,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            repetition_penalty=repetition_penalty,
            seed=seed,
            stop=stop or (),
        ):
            tokens.append(token.id)
            pieces.append(token.text)
            out.stream(token.text)
        out.text("")
        out.note(f"mansard: {report(lm)}")
        if trace is not None and lm.trace is not None:
            write_trace(lm.trace, trace, model.name)
        stats, speculation = lm.stats, lm.stats.speculation
        out.result(
            {
                "text": "".join(pieces),
                "tokens": tokens,
                "prompt_tokens": stats.prompt,
                "first_token_s": stats.first_token,
                "tokens_per_s": stats.decode_rate,
                "speculation": None if speculation is None else speculation.to_json(),
                "memory": lm.memory().to_json(),
            }
        )


def chat(
    model: ModelArgument,
    system: Annotated[str | None, typer.Option(help="The first message, which sets the tone.")] = None,
    max_new_tokens: TokensOption = 1024,
    temperature: TemperatureOption = 0.7,
    top_k: TopKOption = 0,
    top_p: TopPOption = 0.95,
    min_p: MinPOption = 0.0,
    repetition_penalty: PenaltyOption = 1.0,
    seed: SeedOption = 0,
    device: DeviceOption = None,
    context: ContextOption = None,
    cache_dtype: CacheTypeOption = None,
    quantize: QuantizeOption = None,
    quantize_activations: QuantizeActivationsOption = False,
    group_size: GroupSizeOption = None,
    memory: MemoryOption = None,
    method_device: MethodDeviceOption = None,
    tokenizer: TokenizerOption = None,
    trusted_key: TrustedKeysOption = None,
    draft: DraftOption = None,
    draft_device: DraftDeviceOption = None,
) -> None:
    """Talk with a model, a line at a time, until the end of the input or an empty line."""
    messages = [{"role": "system", "content": system}] if system else []
    with (
        Output(as_json=False) as out,
        opened(
            model,
            device,
            context,
            cache_dtype,
            quantize=quantisation(quantize, quantize_activations, group_size),
            draft=draft,
            draft_devices=draft_device,
            memory=memory,
            method_devices=method_device,
            tokenizer=tokenizer,
            trusted_keys=trusted_key,
            of_texts=True,
        ) as lm,
    ):
        for line in _lines(out):
            messages.append({"role": "user", "content": line})
            answer = ""
            for token in lm.generate(
                _question(lm, messages),
                max_new_tokens,
                temperature=temperature,
                top_k=top_k,
                top_p=top_p,
                min_p=min_p,
                repetition_penalty=repetition_penalty,
                seed=seed + len(messages),
            ):
                answer += token.text
                out.stream(token.text)
            messages.append({"role": "assistant", "content": answer})
            out.text("")
            out.note(f"mansard: {report(lm)}")


def report(lm: LanguageModel) -> str:
    """The last generation in a line: tokens, speed and memory."""
    stats = lm.stats
    reused = f" ({stats.reused} of them cached)" if stats.reused else ""
    speculation = "" if stats.speculation is None else f"; {stats.speculation}"
    return (
        f"{stats.prompt} tokens read{reused} in {stats.first_token:.2f} s, {stats.generated} written, "
        f"{stats.decode_rate:.1f} tokens/s{speculation}; {lm.memory().summary()}"
    )


def _question(lm: LanguageModel, messages: list[dict[str, str]]) -> list[int]:
    return lm.need_tokenizer().encode_chat(messages)


def _lines(out: Output) -> Iterator[str]:
    """What the user types, up to an empty line."""
    while True:
        if sys.stdin.isatty():
            out.stream("> ")
        line = sys.stdin.readline().strip()
        if not line:
            return
        yield line
