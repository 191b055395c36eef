"""What the tests of the command line share."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import pytest
import typer.testing


@pytest.fixture(scope="package", autouse=True)
def _commands_are_built_once() -> Iterator[None]:
    """The parsers of all commands are not built anew for every command line that a test calls."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.testing, "_get_command", functools.cache(typer.testing._get_command))
        yield
