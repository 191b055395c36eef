"""``mansard reduce``: a failing model made small."""

from __future__ import annotations

import contextlib
import shlex
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mansard.cli.output import JsonOption, Output
from mansard.cli.sources import read_source
from mansard.cli.tune import parse_duration
from mansard.errors import CompileError, MansardError

if TYPE_CHECKING:
    from mansard.reducer.failure import Failure
    from mansard.reducer.reduce import Reduced


def reduce(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="The model that fails: .pt2, .onnx, .tflite, .jax, .mlir, .mir, or FILE.py:FUNCTION, which "
            "returns (module, example inputs).",
        ),
    ],
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="FILE", help="The file to write, without its suffix.")
    ] = Path("reduced"),
    device: Annotated[
        list[str] | None,
        typer.Option("--device", metavar="DEVICE", help="Compile for a device: cpu, vulkan. Repeat."),
    ] = None,
    tolerance: Annotated[
        float,
        typer.Option(
            help="The difference from the interpreter's result above which one is wrong, as a fraction of "
            "the largest magnitude."
        ),
    ] = 1e-3,
    seconds: Annotated[
        float, typer.Option(help="The time of one try in seconds; one that takes longer is a hang.")
    ] = 60.0,
    budget: Annotated[
        str, typer.Option(help="The time for all of them: 90s, 10m. What is smallest then is written.")
    ] = "10m",
    check: Annotated[
        bool, typer.Option("--check", help="Only tell how the model fails; the exit code is 1 if it does.")
    ] = False,
    json_: JsonOption = False,
) -> None:
    """Make a failing model small: the fewest ops and the smallest sizes that fail in the same way."""
    from mansard.reducer.reduce import check_model, reduce_model
    from mansard.reducer.trials import Trials

    devices = device or ["cpu"]
    again = ["--tolerance", f"{tolerance:g}", "--seconds", f"{seconds:g}"]
    for name in devices:
        again += ["--device", name]
    with Output(json_) as out, tempfile.TemporaryDirectory(prefix="mansard-reduce-") as folder:
        path = _file_of(model, Path(folder))
        trials = Trials(devices, tolerance, seconds, parse_duration(budget), out.note)
        with contextlib.closing(trials):
            if check:
                _show_failure(check_model(path, trials), out)
                return
            reduced = reduce_model(path, output, trials)
        if reduced is None:
            raise MansardError(
                f"{model} does not fail on {', '.join(devices)}: it compiles, and gives the interpreter's "
                f"results within {tolerance:g} (--device, --tolerance)"
            )
        command = shlex.join(["mansard", "reduce", str(reduced.files[0]), "--check", *again])
        _show_reduced(reduced, trials.count, command, out)


def _show_failure(failure: Failure | None, out: Output) -> None:
    out.text("it compiles, and gives the interpreter's results" if failure is None else str(failure))
    out.result({"failure": None if failure is None else vars(failure)})
    if failure is not None:
        raise typer.Exit(1)


def _show_reduced(reduced: Reduced, tries: int, command: str, out: Output) -> None:
    unfinished = "" if reduced.complete else "; the time was over before it was the smallest (--budget)"
    out.text(reduced.text)
    out.text(str(reduced.failure))
    out.text(f"{reduced.before} ops became {reduced.after} in {tries} tries{unfinished}")
    out.text(f"{', '.join(map(str, reduced.files))}; again: {command}")
    out.result(
        {
            "files": [str(file) for file in reduced.files],
            "failure": vars(reduced.failure),
            "ops_before": reduced.before,
            "ops": reduced.after,
            "tries": tries,
            "complete": reduced.complete,
            "command": command,
        }
    )


def _file_of(model: str, folder: Path) -> Path:
    """The model as a file that a child process reads: of a Python module its Graph, or, where that cannot be
    imported, its program for the sizes of the example inputs."""
    from mansard.frontends import import_model
    from mansard.ir.graph_file import write_graph
    from mansard.reducer.torch_parts import save_program

    keywords: dict[str, Any] = read_source(model, (), {})
    source = keywords["model"]
    if isinstance(source, Path):
        return source
    examples = tuple(keywords["example_inputs"])
    try:
        graph = import_model(source, examples, dynamic_shapes=keywords.get("dynamic_shapes"))
    except CompileError as error:
        path = folder / "model.pt2"
        try:
            save_program(source.eval(), examples, path)
        except Exception:  # what cannot be exported cannot be taken apart
            raise error from None
        return path
    write_graph(graph, folder / "model.mir", weights=True)
    return folder / "model.mir"
