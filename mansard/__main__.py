"""``python -m mansard``: the command line without its script on PATH."""

from mansard.cli.main import app

app(prog_name="mansard")
