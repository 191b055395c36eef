"""``mansard serve``: a language model over HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mansard.cli.compilation.quantisation import GroupSizeOption, QuantizeActivationsOption
from mansard.cli.language.options import (
    CachePositionsOption,
    CacheTypeOption,
    ChunkOption,
    ContextOption,
    ModelArgument,
    QuantizeOption,
    SequencesOption,
    TokenizerOption,
    opened,
    quantisation,
)
from mansard.cli.models import DeviceOption, TrustedKeysOption
from mansard.errors import InputError

_SEQUENCES = 8
"""Texts that the model of a checkpoint generates at a time by default."""


def serve(
    model: ModelArgument,
    host: Annotated[str, typer.Option(help="The address to listen on; 0.0.0.0 for all.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 takes a free one.")] = 8000,
    device: DeviceOption = None,
    sequences: SequencesOption = None,
    context: ContextOption = None,
    cache_positions: CachePositionsOption = None,
    chunk: ChunkOption = None,
    quantize: QuantizeOption = None,
    quantize_activations: QuantizeActivationsOption = False,
    group_size: GroupSizeOption = None,
    cache_dtype: CacheTypeOption = None,
    tokenizer: TokenizerOption = None,
    trusted_key: TrustedKeysOption = None,
    api_key: Annotated[
        str | None,
        typer.Option(
            "--api-key", envvar="MANSARD_API_KEY", help="The key that requests have to carry. Default: none."
        ),
    ] = None,
    served_name: Annotated[
        str | None,
        typer.Option(
            "--served-name", metavar="NAME", help="The model's name in requests. Default: its file's."
        ),
    ] = None,
    max_waiting: Annotated[
        int,
        typer.Option("--max-waiting", min=1, help="Texts that may wait for a cache; one more gets a 429."),
    ] = 1024,
    drain_seconds: Annotated[
        float,
        typer.Option("--drain-seconds", min=0.0, help="How long texts may go on when the server is to end."),
    ] = 30.0,
    logprobs: Annotated[
        bool | None,
        typer.Option(
            "--logprobs/--no-logprobs",
            help="Compile what requests for log-probabilities need. Default: yes, or as an artifact is.",
        ),
    ] = None,
    log_level: Annotated[
        str, typer.Option("--log-level", help="critical, error, warning, info, debug or trace.")
    ] = "info",
) -> None:
    """Serve a language model over HTTP, with OpenAI's API."""
    from mansard.language.loading import is_checkpoint

    try:
        from mansard.serving.options import ServerOptions
        from mansard.serving.server import Server, listen
    except ImportError as error:
        raise InputError(f"serving needs further packages: pip install 'mansard[serve]' ({error})") from error
    if log_level not in ("critical", "error", "warning", "info", "debug", "trace"):
        raise typer.BadParameter(f"{log_level!r} is no log level", param_hint="--log-level")
    options = ServerOptions(
        name=served_name or model_name(model),
        api_key=api_key or None,
        max_waiting=max_waiting,
        drain_seconds=drain_seconds,
    )
    weights = quantisation(quantize, quantize_activations, group_size)
    if is_checkpoint(model):
        sequences = _SEQUENCES if sequences is None else sequences
        logprobs = True if logprobs is None else logprobs
    socket = listen(host, port)  # before the model is compiled, which may take long
    with socket, opened(
        model, device, context, cache_dtype,
        sequences=sequences, cache_positions=cache_positions, chunk=chunk, quantize=weights,
        tokenizer=tokenizer, logprobs=logprobs, trusted_keys=trusted_key,
    ) as lm:  # fmt: skip
        server = Server(lm, options, log_level=log_level, ready=_tell)
        try:
            server.run([socket])
        finally:
            server.service.close()


def model_name(path: Path) -> str:
    """What a model is called in requests: its folder's name, or its file's without the suffix."""
    path = path.resolve()
    return path.name if path.is_dir() else path.name.removesuffix(".gguf").removesuffix(".mansard")


def _tell(address: str) -> None:
    print(f"mansard: serving at {address}/v1", flush=True)
