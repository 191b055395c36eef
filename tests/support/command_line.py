"""Mansard's commands, called in this process."""

from __future__ import annotations

import functools
import json
from typing import Any

import pytest
import typer.main
import typer.testing

from mansard.cli.main import app

_built = functools.cache(typer.main.get_command)


def invoke(*arguments: object, **options: Any) -> Any:
    """Call a command; ``options`` are those of `typer.testing.CliRunner.invoke`."""
    with pytest.MonkeyPatch.context() as patch:  # typer would build the parsers of all commands for each call
        patch.setattr(typer.testing, "_get_command", _built)
        return typer.testing.CliRunner().invoke(app, [str(argument) for argument in arguments], **options)


def json_of(*arguments: object) -> Any:
    result = invoke(*arguments, "--json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)
