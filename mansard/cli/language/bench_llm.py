"""``mansard bench-llm``: how fast a language model is on this machine."""

from __future__ import annotations

import dataclasses
import os
import platform
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mansard.cli.compilation.quantisation import GroupSizeOption, QuantizeActivationsOption
from mansard.cli.language.options import (
    CacheTypeOption,
    ChunkOption,
    ContextOption,
    ModelArgument,
    QuantizeOption,
    opened,
    quantisation,
)
from mansard.cli.models import DeviceOption, TrustedKeysOption
from mansard.cli.output import JsonOption, Output, milliseconds, si

if TYPE_CHECKING:
    from rich.table import Table

    from mansard.language import LanguageModel
    from mansard.language.benchmark import Measurement


def bench_llm(
    model: ModelArgument,
    prompts: Annotated[
        str, typer.Option("--prompts", metavar="N,…", help="Lengths of prompts, in tokens.")
    ] = "32,128,512",
    sequences: Annotated[
        str | None,
        typer.Option(
            "--sequences",
            metavar="N,…",
            help="Texts generated at a time; each is compiled anew. Default: 1,8, or what an artifact has.",
        ),
    ] = None,
    concurrency: Annotated[
        str | None,
        typer.Option("--concurrency", metavar="N,…", help="Texts requested at once. Default: --sequences."),
    ] = None,
    new_tokens: Annotated[
        int, typer.Option("--new-tokens", "-n", min=2, help="New tokens of each text.")
    ] = 64,
    runs: Annotated[int, typer.Option("--runs", min=1, help="Timed runs; the median one counts.")] = 3,
    device: DeviceOption = None,
    context: ContextOption = None,
    chunk: ChunkOption = None,
    quantize: QuantizeOption = None,
    quantize_activations: QuantizeActivationsOption = False,
    group_size: GroupSizeOption = None,
    cache_dtype: CacheTypeOption = None,
    trusted_key: TrustedKeysOption = None,
    as_json: JsonOption = False,
) -> None:
    """Time a language model with random prompts: time to the first token, tokens a second, memory."""
    from mansard.language.benchmark import measure
    from mansard.language.loading import is_checkpoint

    weights = quantisation(quantize, quantize_activations, group_size)
    lengths = numbers("--prompts", prompts)
    wanted = numbers("--concurrency", concurrency) if concurrency else None
    if is_checkpoint(model):
        sequences = sequences or "1,8"
        context = max(lengths) + new_tokens if context is None else context
    batches: list[int | None] = [*numbers("--sequences", sequences)] if sequences else [None]
    rows: list[Measurement] = []
    memory: dict[str, Any] = {}
    about: dict[str, Any] = {}
    with Output(as_json) as out:
        for batch in batches:
            options = {"sequences": batch, "chunk": chunk, "quantize": weights, "trusted_keys": trusted_key}
            with opened(model, device, context, cache_dtype, **options) as lm:
                if not about:
                    about = machine(lm)
                    out.show(f"{about['cpu']}, {about['cores']} cores; {', '.join(about['devices'])}")
                texts = lm.description.sequences
                for length in lengths:
                    rows += [measure(lm, length, each, new_tokens, runs) for each in wanted or [texts]]
                memory[str(texts)] = lm.memory().devices
        out.show(table(rows))
        for count, devices in memory.items():
            held = (f"{name} {si(sum(uses.values()), 'B')}" for name, uses in devices.items())
            out.show(f"memory with {count} sequences: {', '.join(held)}")
        out.result({**about, "measurements": [dataclasses.asdict(row) for row in rows], "memory": memory})


def numbers(option: str, text: str) -> list[int]:
    """Counts separated by commas."""
    try:
        counts = [int(part) for part in text.split(",")]
    except ValueError:
        counts = [0]
    if min(counts) < 1:
        raise typer.BadParameter(f"{text!r} is not a list of counts such as 1,8", param_hint=option)
    return counts


def machine(lm: LanguageModel) -> dict[str, Any]:
    """The machine and the devices that the model runs on."""
    from mansard.hal import registry

    cpu = next((info.name for info in registry.devices() if info.driver == "cpu"), platform.machine())
    return {
        "cpu": cpu,
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "system": platform.platform(),
        "devices": [slot.device.info.name for slot in lm.model.bind().slots],
        "model": lm.description.family,
        "context": lm.description.context,
    }


def table(rows: list[Measurement]) -> Table:
    """Measurements, one a line."""
    from rich.table import Table

    shown = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("sequences", "concurrency", "prompt", "first token", "longest", "prompt tokens/s"):
        shown.add_column(name, justify="right")
    for name in ("tokens/s a text", "tokens/s in all"):
        shown.add_column(name, justify="right")
    for row in rows:
        shown.add_row(
            str(row.sequences),
            str(row.concurrency),
            str(row.prompt),
            milliseconds(row.first_token_s * 1e3),
            milliseconds(row.last_first_token_s * 1e3),
            f"{row.prompt_rate:.1f}",
            f"{row.text_rate:.1f}",
            f"{row.total_rate:.1f}",
        )
    return shown
