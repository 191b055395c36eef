"""``mansard compile --stop-after PASS``: the IR of a model in the middle of its compilation."""

from __future__ import annotations

from pathlib import Path

import typer

from mansard.cli.output import Output
from mansard.cli.sources import Keywords


def lower(
    out: Output, keywords: Keywords, stop_after: str, output: Path | None, *, with_weights: bool
) -> None:
    """Write the IR after a pass to a file or to standard output; ``keywords`` go to `mansard.lower`."""
    import mansard
    from mansard.ir.graph import Graph
    from mansard.ir.graph_file import write_graph

    if with_weights and output is None:
        raise typer.BadParameter("--with-weights needs -o FILE.mir: the weights are written beside it")
    ir = mansard.lower(**keywords, stop_after=stop_after)
    if with_weights and not isinstance(ir, Graph):
        raise typer.BadParameter(f"--with-weights is for a graph; after {stop_after!r} there are dispatches")
    if output is None:
        out.text(str(ir))
        out.result({"pass": stop_after, "ir": str(ir)})
        return
    weights = None
    if isinstance(ir, Graph):
        weights = write_graph(ir, output, weights=with_weights)
    else:
        output.write_text(f"{ir}\n", encoding="utf-8")
    out.show(f"{output}: the IR after {stop_after}" + (f"; {weights}: its weights" if weights else ""))
    if isinstance(ir, Graph):
        out.show(f"compile it further: mansard compile {output} --from {_following(stop_after)} -o ARTIFACT")
    out.result(
        {"pass": stop_after, "file": str(output), "weights": None if weights is None else str(weights)}
    )


def _following(name: str) -> str:
    """The step behind one that leaves a Graph, of which fusion is the last."""
    from mansard.passes.pipeline import pipeline

    names = [step.name for step in pipeline()]
    return names[names.index(name) + 1]
