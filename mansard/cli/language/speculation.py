"""Options of drafts, and the timeline of a generation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mansard.cli.trace import trace_document

if TYPE_CHECKING:
    from mansard.language.speculation.trace import CallTrace

DraftOption = Annotated[
    str | None,
    typer.Option(
        metavar="MODEL|ngram",
        help="Proposes tokens, of which the model verifies several at a time: a smaller model of the same "
        "vocabulary, or what the text so far repeats.",
    ),
]
DraftDeviceOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="DEVICE", help="Where the draft model runs, by default as the model does. Repeatable."
    ),
]
TraceOption = Annotated[
    Path | None,
    typer.Option(
        "--trace", metavar="FILE", help="Write when each device ran which call; open it in ui.perfetto.dev."
    ),
]


def write_trace(trace: CallTrace, path: Path, name: str) -> None:
    """Write the calls of a generation as a timeline."""
    document = trace_document(trace.rows, {}, name, trace.all_busy)
    try:
        path.write_text(json.dumps(document), encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise typer.BadParameter(f"{path} cannot be written: {reason}") from None
