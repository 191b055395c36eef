"""Mansard beside other CPU runtimes: same models, inputs and processors, every step in its own process.

    python -m benchmarks.models.cpu                        # four float32 models, every peer installed
    python -m benchmarks.models.cpu --models minilm,qwen_decode --peers mansard,openvino --rounds 5
    python -m benchmarks.models.cpu --json out.json --markdown out.md --plot out.svg

For each model every peer is built first (export and compilation). Then come rounds: peer after peer, each in
a fresh process that loads the built files, calls once, warms up and times calls. A row has the median of the
rounds' medians; ratios are taken round by round. Peers that are not installed are listed with the command
that installs them; `tools/bench_env.sh` makes virtual environments for those that need their own.

--json writes the list of rows, and the machine beside it (FILE.machine.json for FILE.json).
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import machine, report
from benchmarks.harness.cases import CASES, DEFAULT_MODELS, MODELS, Case
from benchmarks.harness.children import Runner, StepFailed
from benchmarks.harness.paths import ROOT
from benchmarks.harness.peers import OURS, PEERS
from benchmarks.harness.rows import Row, add_ratios, merge_rounds, new_row


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The options; ends the program with a message naming what is wrong and what would be right."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.models.cpu",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--models", type=_names("model", CASES, MODELS), default=list(DEFAULT_MODELS), metavar="A,B",
        help=f"of {', '.join(MODELS)}; or all (default: {','.join(DEFAULT_MODELS)})")  # fmt: skip
    add("--peers", type=_names("peer", PEERS, PEERS), default=list(PEERS), metavar="X,Y",
        help=f"of {', '.join(PEERS)} (default: all)")  # fmt: skip
    add("--threads", type=_positive, default=2, metavar="N", help="threads and cores (default: 2)")
    add("--rounds", type=_positive, default=3, metavar="N", help="processes per row (default: 3)")
    add("--json", type=Path, metavar="FILE", help="write the rows here")
    add("--markdown", type=Path, metavar="FILE", help="write the report here")
    add("--plot", type=_picture, metavar="FILE", help="write a plot here (.svg or .png)")
    add("--venv", type=_venv, action="append", default=[], metavar="PEER=PATH",
        help="a peer's virtual environment (default: WORK/venvs/PEER if there, else this one)")  # fmt: skip
    add("--work", type=Path, default=ROOT / ".cache" / "bench", metavar="FOLDER",
        help="where weights and built files are kept (default: .cache/bench)")  # fmt: skip
    add("--keep-builds", action="store_true", help="use what an earlier run built, except for Mansard")
    add("--limit", type=_positive, default=900, metavar="S", help="seconds for one step (default: 900)")
    add("--no-machine", action="store_true", help="do not measure the limits of the machine")
    return parser.parse_args(arguments)


def _names(what: str, known: Any, everything: Any) -> Any:
    def read(text: str) -> list[str]:
        names = list(everything) if text == "all" else text.split(",")
        for name in names:
            if name not in known:
                raise argparse.ArgumentTypeError(f"no {what} {name!r}: choose from {', '.join(everything)}")
        return list(dict.fromkeys(names))

    return read


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def _picture(text: str) -> Path:
    if not text.endswith((".svg", ".png")):
        raise argparse.ArgumentTypeError(f"{text!r} should end in .svg or .png")
    return Path(text)


def _venv(text: str) -> tuple[str, Path]:
    name, _, path = text.partition("=")
    if name not in PEERS or not path:
        raise argparse.ArgumentTypeError(f"{text!r} should be PEER=PATH, PEER one of {', '.join(PEERS)}")
    if not (Path(path) / "bin" / "python").exists():
        raise argparse.ArgumentTypeError(f"{path} is not a virtual environment: it has no bin/python")
    return name, Path(path).resolve()


def measure_model(
    case: Case, names: Sequence[str], runner: Runner, rounds: int, rebuild: Collection[str]
) -> list[Row]:
    """Rows of one model: build every peer, then run them in turn, round after round.

    Files of an earlier run serve the peers that are not in ``rebuild``.
    """
    rows = {name: new_row(case.name, name) for name in names}
    built: dict[str, Any] = {}
    runs: dict[str, list[Any]] = {}
    fresh = set(rebuild)
    for name in names:
        peer = PEERS[name]
        if refusal := peer.refuses(case):
            rows[name]["status"] = f"not supported: {refusal}"
            continue
        maker = peer.shares_build_of or name
        try:
            runner.versions(peer)
            runner.prepare(case)
            built[name] = runner.build(PEERS[maker], case, again=maker in fresh)
            fresh.discard(maker)
            runs[name] = []
            _say(f"{case.name}, {name}: built in {built[name].get('compile_s', 0):.1f} s")
        except StepFailed as failure:
            rows[name]["status"] = str(failure)
            _say(f"{case.name}, {name}: {failure}")
    for number in range(rounds):
        for name in [n for n in runs if rows[n]["status"] == "ok"]:
            try:
                runs[name].append(runner.run(PEERS[name], case))
                _say(f"{case.name}, {name}: {runs[name][-1]['median_ms']:.3f} ms, round {number + 1}")
            except StepFailed as failure:
                rows[name]["status"] = str(failure)
                _say(f"{case.name}, {name}: {failure}")
    for name, rounds_of_peer in runs.items():
        if rows[name]["status"] == "ok":
            rows[name] |= built[name] | merge_rounds(rounds_of_peer)
    return list(rows.values())


def measure_limits(runner: Runner, rounds: int) -> tuple[dict[str, Any], list[Row]]:
    """The machine's limits on one thread and on all, and Mansard's rows for the cases that reach for them."""
    limits: dict[str, Any] = {}
    rows: list[Row] = []
    rebuild = ["mansard"]
    for threads in sorted({1, runner.threads}):
        single = Runner(runner.work, threads, runner.venvs, runner.limit)
        best = machine.limits(runner.work, threads)
        micro: dict[str, Row] = {}
        for case in (case for case in CASES.values() if case.micro):
            row = measure_model(case, ["mansard"], single, rounds, rebuild)[0]
            rows.append(row | {"threads": threads})
            if row["status"] == "ok":
                micro[case.name] = row
            # again after each case: the best of all is the limit
            best = {key: max(value, best[key]) for key, value in machine.limits(runner.work, threads).items()}
        limits |= machine.shares(threads, best, micro)
        rebuild = []
    limits |= machine.dispatch_costs(runner.threads)
    return limits, rows


def main() -> None:
    options = parse(sys.argv[1:])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that a step under way is stopped too
    runner = Runner(options.work.resolve(), options.threads, dict(options.venv), options.limit)
    versions: dict[str, str] = {}
    for name in options.peers:
        try:
            versions |= runner.versions(PEERS[name])
        except StepFailed as failure:
            _say(f"{name}: {failure}")
    about = machine.describe(options.threads, versions)
    rows: list[Row] = []
    if not options.no_machine:
        limits, micro = measure_limits(runner, options.rounds)
        about["limits"] = limits
        rows += micro
    chosen = OURS if options.keep_builds else options.peers
    rebuild = {PEERS[name].shares_build_of or name for name in chosen}
    for model in options.models:
        rows += measure_model(CASES[model], options.peers, runner, options.rounds, rebuild)
        add_ratios(rows)
        write(options, rows, about)  # after each model: a long run that is stopped leaves what it has
    print(report.table(rows))
    print(report.machine_table(about))


def write(options: argparse.Namespace, rows: list[Row], about: dict[str, Any]) -> None:
    """Write the files that were asked for."""
    for path in (options.json, options.markdown, options.plot):
        if path:
            path.parent.mkdir(parents=True, exist_ok=True)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
        options.json.with_suffix(".machine.json").write_text(json.dumps(about, indent=1) + "\n")
    if options.plot:
        report.plot(rows, options.plot)
    if options.markdown:
        picture = None
        if options.plot:
            picture = os.path.relpath(options.plot, options.markdown.parent)
        options.markdown.write_text(report.page(rows, about, picture))


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
