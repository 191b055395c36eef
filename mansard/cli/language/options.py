"""Options of the commands of language models, and how they open one."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mansard.cli.progress import progress_bar
from mansard.cli.specs import parse_memory
from mansard.errors import InputError

if TYPE_CHECKING:
    from mansard.language import LanguageModel
    from mansard.language.tokenizer import Tokenizer

ModelArgument = Annotated[
    Path,
    typer.Argument(
        metavar="MODEL", help="The folder of a checkpoint, a .gguf file, or an artifact of a language model."
    ),
]
TokensOption = Annotated[
    int, typer.Option("--max-new-tokens", "-n", min=1, help="At most so many new tokens.")
]
TemperatureOption = Annotated[
    float, typer.Option(help="Divides the logits; 0 always takes the most likely token.")
]
TopKOption = Annotated[
    int, typer.Option("--top-k", help="Draw from so many of the most likely tokens; 0: all.")
]
TopPOption = Annotated[
    float, typer.Option("--top-p", help="Draw from the fewest tokens that together have this probability.")
]
MinPOption = Annotated[
    float, typer.Option("--min-p", help="Draw from tokens at least this many times as likely as the first.")
]
PenaltyOption = Annotated[
    float, typer.Option("--repetition-penalty", help="Above 1: tokens that occurred become less likely.")
]
StopOption = Annotated[
    list[str] | None, typer.Option("--stop", metavar="TEXT", help="End before this text. Repeat.")
]
SeedOption = Annotated[int, typer.Option(help="Equal seeds give equal texts.")]
ContextOption = Annotated[int | None, typer.Option(help="Positions of the cache of keys and values.")]
CacheTypeOption = Annotated[
    str | None, typer.Option("--cache-dtype", help="Element type of the cache: f32, f16, bf16 or int8.")
]
SequencesOption = Annotated[
    int | None,
    typer.Option(
        "--sequences",
        min=1,
        help="Texts generated at a time, each with a cache of its own. Default: 8, or what an artifact has.",
    ),
]
CachePositionsOption = Annotated[
    int | None,
    typer.Option(
        "--cache-positions",
        min=1,
        help="Positions that all texts share in pages of 128. Default: each text has as many as --context.",
    ),
]
ChunkOption = Annotated[
    int | None,
    typer.Option("--chunk", min=1, help="Tokens of a prompt that are read at a time. Default: 512."),
]
QuantizeOption = Annotated[
    str | None,
    typer.Option(
        "--quantize",
        help="Store the weights of products as int8, int4 or float12; stored: as the file has them.",
    ),
]
TokenizerOption = Annotated[
    Path | None, typer.Option("--tokenizer", metavar="PATH", help="A folder or file with a tokenizer.")
]
MemoryOption = Annotated[
    list[str] | None,
    typer.Option(
        "--memory",
        metavar="DEVICE=BYTES",
        help="The most memory that the model takes on a device: vulkan=2GB. Repeat.",
    ),
]
MethodDeviceOption = Annotated[
    list[str] | None,
    typer.Option(
        "--method-device",
        metavar="METHOD=DEVICE",
        help="Where a method runs: prefill=vulkan (reads prompts) or decode=cpu (writes). Repeat.",
    ),
]


@contextmanager
def opened(
    model: Path,
    device: list[str] | None,
    context: int | None,
    cache_dtype: str | None,
    *,
    targets: Sequence[str] | None = None,
    of_texts: bool = False,
    **options: Any,
) -> Iterator[LanguageModel]:
    """The model on its devices, which one text may list with commas, or compiled for ``targets``, each of
    which may be several for one device; options that are None have the defaults of `load_lm`. ``of_texts``:
    raise InputError for a model without a tokenizer."""
    from mansard.language import load_lm
    from mansard.language.loading import is_checkpoint
    from mansard.language.tokenizer import find_tokenizer
    from mansard.language.tokenizer.backend import backend_module

    names = [name for text in device or () for name in re.split(r",(?![+-])", text)] + list(targets or ())
    given = {name: value for name, value in options.items() if value is not None}
    if memory := options.get("memory"):
        given["memory"] = dict(parse_memory(memory))
    if methods := options.get("method_devices"):
        given["method_devices"] = dict(map(_method_device, methods))
    whole = (model / "config.json").exists() if model.is_dir() else model.exists()
    if of_texts and options.get("tokenizer") is None and is_checkpoint(model) and whole:
        given["tokenizer"] = find_tokenizer(model)
        _check_tokenizer(model, given["tokenizer"])  # before the model is compiled
    with progress_bar() as progress:
        lm = load_lm(
            model, devices=names or None, context=context, cache_dtype=cache_dtype, progress=progress, **given
        )
    with lm:
        if of_texts and lm.tokenizer is None:
            backend_module()
            _check_tokenizer(model, None)
        yield lm


def quantisation(quantize: str | None, activations: bool, group_size: int | None) -> Any:
    """``--quantize`` with what refines it, as `load_lm` takes it."""
    if not activations and group_size is None:
        return quantize
    if quantize is None:
        option = "--quantize-activations" if activations else "--group-size"
        raise typer.BadParameter(f"{option} refines --quantize")
    from mansard.quantisation import quantize as refined

    return refined(quantize, activations="int8" if activations else None, group_size=group_size)


def _check_tokenizer(model: Path, tokenizer: Tokenizer | None) -> None:
    if tokenizer is None:
        raise InputError(f"{model} has no tokenizer: --tokenizer names the folder or file of one")


def _method_device(text: str) -> tuple[str, str]:
    method, separator, device = text.partition("=")
    if not (method and separator and device):
        raise typer.BadParameter(f"{text!r} is not METHOD=DEVICE, such as prefill=vulkan")
    return method, device
