"""``mansard tune``: search for faster kernels on this machine."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mansard.cli.limits import LimitsOption
from mansard.cli.models import ArtifactArgument, TrustedKeysOption, open_model
from mansard.cli.output import JsonOption, Output
from mansard.cli.progress import progress_bar

if TYPE_CHECKING:
    from rich.table import Table

    from mansard.tuning import TunedKernel

_SHOWN = 12
_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}


def tune(
    artifact: ArtifactArgument,
    budget: Annotated[
        str, typer.Option("--budget", metavar="TIME", help="How long to search: 60s, 5m, 1h.")
    ] = "60s",
    output: Annotated[
        Path | None,
        typer.Option(
            "-o", "--output", metavar="ARTIFACT", help="The file to write. Default: the artifact itself."
        ),
    ] = None,
    no_cache: Annotated[
        bool, typer.Option("--no-cache", help="Neither read nor write cached results and kernels.")
    ] = False,
    trusted_key: TrustedKeysOption = None,
    limits: LimitsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Search schedule parameters of a model's kernels on this machine, and store the best in the artifact.

    Results are cached by device, driver and kernel: compiling for the device uses them, and tuning again
    continues from them. The file written is not signed.
    """
    import mansard

    seconds = parse_duration(budget)
    target = output or artifact
    with Output(as_json) as out:
        with progress_bar() as progress:
            given = open_model(artifact, None, trusted_keys=trusted_key) if trusted_key else artifact
            model = mansard.tune(given, seconds, cache=not no_cache, progress=progress)
            model.save(target, progress=lambda done, total: progress("write", done, total))
        tuning = model.tuning
        assert tuning is not None
        out.show(kernel_table(tuning.kernels[:_SHOWN]))
        if len(tuning.kernels) > _SHOWN:
            out.show(f"… and {len(tuning.kernels) - _SHOWN} kernels that take less time")
        changed = sum(k.parameters is not None for k in tuning.kernels)
        out.show(
            f"{target}: {changed} of {len(tuning.kernels)} kernels changed "
            f"in {tuning.seconds:.1f} s; in total "
            f"{tuning.default_us / 1e3:.3f} ms before, {tuning.best_us / 1e3:.3f} ms now"
        )
        out.result(
            {
                "artifact": str(target),
                "seconds": tuning.seconds,
                "default_us": tuning.default_us,
                "best_us": tuning.best_us,
                "kernels": [describe(kernel) for kernel in tuning.kernels],
            }
        )


def parse_duration(text: str) -> float:
    """``60s``, ``5m``, ``1.5h`` or a number of seconds. Raises typer.BadParameter."""
    matched = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text.strip())
    if matched is None:
        raise typer.BadParameter(f"{text!r} is not a duration; write 60s, 5m or 1h")
    return float(matched[1]) * _UNITS[matched[2]]


def describe(kernel: TunedKernel) -> dict[str, object]:
    """One kernel's result for ``--json``."""
    return {
        "device": kernel.device,
        "kernel": kernel.kernel,
        "dispatches": kernel.dispatches,
        "default_us": kernel.default_us,
        "best_us": kernel.best_us,
        "parameters": None if kernel.parameters is None else kernel.parameters.to_dict(),
        "tried": kernel.tried,
        "candidates": kernel.candidates,
    }


def kernel_table(kernels: tuple[TunedKernel, ...]) -> Table:
    """The kernels with their times before and after."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("kernel", "dispatches", "default", "best", "tried", "parameters"):
        table.add_column(name, justify="left" if name in ("kernel", "parameters") else "right")
    for k in kernels:
        table.add_row(
            k.kernel,
            str(k.dispatches),
            f"{k.default_us:.1f} µs",
            f"{k.best_us:.1f} µs",
            f"{k.tried}/{k.candidates}",
            "default" if k.parameters is None else str(k.parameters),
        )
    return table
