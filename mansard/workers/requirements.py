"""In the child: whether the environment has the distributions that a module needs, in their versions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib import metadata

_REQUIREMENT = re.compile(r"^([A-Za-z0-9._-]+)\s*(?:(==|>=)\s*([0-9][0-9A-Za-z.]*))?$")


def missing(requirements: Sequence[str]) -> list[str]:
    """Requirements (``name``, ``name==1.2`` or ``name>=1.2``) that are not met, each with what there is."""
    return [problem for requirement in requirements if (problem := _problem(requirement))]


def _problem(requirement: str) -> str | None:
    match = _REQUIREMENT.match(requirement.strip())
    if match is None:
        raise ValueError(f"{requirement!r} is no requirement: a name, or a name with == or >= and a version")
    name, operator, version = match.groups()
    try:
        present = metadata.version(name)
    except metadata.PackageNotFoundError:
        return f"{requirement} (not installed)"
    met = (
        operator is None
        or (operator == "==" and present == version)
        or (operator == ">=" and _release(present) >= _release(version))
    )
    return None if met else f"{requirement} (version {present} is installed)"


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version.partition("+")[0])[:4])
