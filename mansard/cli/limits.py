"""The option ``--limits``: restrict GPUs to the features and limits of a smaller one."""

from __future__ import annotations

from typing import Annotated

import typer


def _apply_limits(profile: str | None) -> str | None:
    """Apply the option while the command line is parsed, before any device is listed or opened."""
    if profile is not None:
        from mansard.hal.registry import configure_driver

        configure_driver("vulkan", limits=profile)
    return profile


LimitsOption = Annotated[
    str | None,
    typer.Option(
        "--limits",
        metavar="PROFILE",
        callback=_apply_limits,
        help="Restrict GPUs to the features and limits of a smaller one: mali-g720, adreno-750, moltenvk, "
        "steam-deck, vulkan-minimum.",
    ),
]
