"""``mansard compile-llm``: a language model into an artifact."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from mansard.cli.compilation.quantisation import GroupSizeOption, QuantizeActivationsOption
from mansard.cli.language.options import (
    CachePositionsOption,
    CacheTypeOption,
    ChunkOption,
    ContextOption,
    MemoryOption,
    MethodDeviceOption,
    QuantizeOption,
    TokenizerOption,
    opened,
    quantisation,
)
from mansard.cli.models import DeviceOption, TargetOption
from mansard.cli.output import JsonOption, Output, si
from mansard.errors import InputError


def compile_llm(
    model: Annotated[
        Path, typer.Argument(metavar="MODEL", help="The folder of a checkpoint, or a .gguf file.")
    ],
    output: Annotated[Path, typer.Option("-o", "--output", metavar="ARTIFACT", help="The file to write.")],
    device: DeviceOption = None,
    target: TargetOption = None,
    sequences: Annotated[
        int,
        typer.Option("--sequences", min=1, help="Texts generated at a time, each with a cache of its own."),
    ] = 1,
    context: ContextOption = None,
    cache_positions: CachePositionsOption = None,
    chunk: ChunkOption = None,
    cache_dtype: CacheTypeOption = None,
    quantize: QuantizeOption = None,
    quantize_activations: QuantizeActivationsOption = False,
    group_size: GroupSizeOption = None,
    proposals: Annotated[
        int | None,
        typer.Option(
            "--proposals",
            min=1,
            help="Compile the verification of so many proposed tokens, for --draft of mansard generate.",
        ),
    ] = None,
    logprobs: Annotated[
        bool, typer.Option("--logprobs", help="Compile what gives log-probabilities of tokens.")
    ] = False,
    tokenizer: TokenizerOption = None,
    memory: MemoryOption = None,
    method_device: MethodDeviceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compile a language model, with its tokenizer, into one artifact file."""
    from mansard.language.loading import is_checkpoint

    if model.exists() and not is_checkpoint(model):
        raise InputError(f"{model} is no checkpoint: compile-llm takes a folder or a .gguf file")
    begun = time.perf_counter()
    with (
        Output(as_json) as out,
        opened(
            model,
            device,
            context,
            cache_dtype,
            targets=target,
            sequences=sequences,
            cache_positions=cache_positions,
            chunk=chunk,
            quantize=quantisation(quantize, quantize_activations, group_size),
            draft=None if proposals is None else "ngram",
            proposals=proposals,
            logprobs=logprobs,
            tokenizer=tokenizer,
            memory=memory,
            method_devices=method_device,
        ) as lm,
    ):
        lm.save(output)
        seconds, size = time.perf_counter() - begun, output.stat().st_size
        devices = [slot.name for slot in lm.model.plan.devices]
        without = "" if lm.tokenizer is not None else ", without a tokenizer"
        out.text(f"{output}: {si(size, 'B')} for {', '.join(devices)} in {seconds:.1f} s{without}")
        out.result(
            {
                "artifact": str(output),
                "bytes": size,
                "devices": devices,
                "seconds": seconds,
                "tokenizer": lm.tokenizer is not None,
                "context": lm.description.context,
                "chunk": lm.description.chunk,
            }
        )
