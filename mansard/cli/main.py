"""The program ``mansard``."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any

import typer
import typer.core

from mansard.cli import (
    bench,
    calibrate,
    compile_,
    demo,
    devices,
    explain,
    reduce,
    run,
    sign,
    simulate,
    trace,
    tune,
)
from mansard.cli.language import bench_llm, compile_llm, generate, serve
from mansard.errors import MansardError


class _Commands(typer.core.TyperGroup):
    """The commands in order of registration, with Mansard's errors as one line instead of a traceback."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Commands in the order of registration."""
        return list(self.commands)

    def invoke(self, ctx: Any) -> Any:
        """Run a command; exit code 1 for a MansardError, 141 for a closed pipe as in a shell."""
        try:
            return super().invoke(ctx)
        except MansardError as error:
            if os.environ.get("MANSARD_TRACEBACK", "0") not in ("", "0"):
                raise
            print(f"mansard: {_one_line(error)}", file=sys.stderr)
            raise typer.Exit(1) from None
        except (MemoryError, RecursionError) as error:
            if os.environ.get("MANSARD_TRACEBACK", "0") not in ("", "0"):
                raise
            print(f"mansard: {type(error).__name__}: {error or 'out of memory'}", file=sys.stderr)
            raise typer.Exit(1) from None
        except BrokenPipeError:
            # The reader went away (`| head`): no message, and none from the interpreter's last flush.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(141) from None


def _one_line(error: MansardError) -> str:
    text = " ".join(str(error).split())
    return text or type(error).__name__


app = typer.Typer(
    name="mansard",
    cls=_Commands,
    help="Compile a trained model once and run it on everything a chip has.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        import importlib.metadata

        print(f"mansard {importlib.metadata.version('mansard')}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Compile a trained model once and run it on everything a chip has."""


app.command("devices")(devices.devices)
app.command("compile")(compile_.compile_)
app.command("reduce")(reduce.reduce)
app.command("run")(run.run)
app.command("bench")(bench.bench)
app.command("calibrate")(calibrate.calibrate)
app.command("tune")(tune.tune)
app.command("explain")(explain.explain)
app.command("simulate")(simulate.simulate)
app.command("trace")(trace.trace)
app.command("generate")(generate.generate)
app.command("chat")(generate.chat)
app.command("serve")(serve.serve)
app.command("compile-llm")(compile_llm.compile_llm)
app.command("bench-llm")(bench_llm.bench_llm)
app.command("sign")(sign.sign)
app.command("keygen")(sign.keygen)
app.command("demo")(demo.demo)
