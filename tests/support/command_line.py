"""Mansard's commands, called in this process."""

from __future__ import annotations

import json
from typing import Any

from typer.testing import CliRunner

from mansard.cli.main import app


def invoke(*arguments: object) -> Any:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def json_of(*arguments: object) -> Any:
    result = invoke(*arguments, "--json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)
