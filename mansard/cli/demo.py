"""``mansard demo``: a sentence encoder on the devices of this machine."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from mansard.cli.output import JsonOption, Output
from mansard.cli.progress import progress_bar


def demo(
    sentences: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[SENTENCE]...", help="Sentences to compare; - reads them from standard input."
        ),
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", metavar="FILE", help="Read sentences from a file, one per line.")
    ] = None,
    devices: Annotated[
        str,
        typer.Option(
            "--devices",
            metavar="LIST",
            help="Devices to use, as in cpu,vulkan; each of several runs at least a third of the "
            "dispatches. Default: every usable device, as placement decides.",
        ),
    ] = "",
    length: Annotated[
        int | None,
        typer.Option(
            "--length", min=4, max=256, help="Compile for a fixed number of tokens instead of any number."
        ),
    ] = None,
    runs: Annotated[int, typer.Option("--runs", min=1, help="Timed calls; the latency is their median.")] = 5,
    as_json: JsonOption = False,
) -> None:
    """Compile a sentence encoder (all-MiniLM-L6-v2) for this machine's devices, run it, compare with
    PyTorch."""
    from mansard.demo import run
    from mansard.demo.report import as_json as json_of
    from mansard.demo.report import renderables

    chosen = read_sentences(sentences or (), file) or list(run.SENTENCES)
    names = tuple(dict.fromkeys(name.strip() for name in devices.split(",") if name.strip()))
    with Output(as_json) as out:
        with progress_bar() as progress:
            result = run.run_demo(chosen, run.Options(names, length, runs), progress)
        for renderable in renderables(result):
            out.show(renderable)
        out.result(json_of(result))


def read_sentences(arguments: Sequence[str], file: Path | None) -> list[str]:
    """Sentences from arguments, standard input (``-``) and a file, in this order; empty lines left out."""
    sentences: list[str] = []
    for argument in arguments:
        sentences += _lines(sys.stdin.read()) if argument == "-" else [argument]
    if file is not None:
        try:
            sentences += _lines(file.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise typer.BadParameter(f"{file} cannot be read: {error}") from None
    if (arguments or file) and not sentences:
        raise typer.BadParameter("no sentences given")
    return sentences


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]
