"""Networks that TensorFlow's converter wrote, by Mansard and by LiteRT, each in processes of its own in turn.

    python -m benchmarks.tflite_models.speed FOLDER [--only PATTERN] [--threads 2] [--rounds 3]

A process loads a model, calls it for `WARM_S`, and then times calls for `TIMED_S`; the threads of the one
runtime would disturb the other's in one process. Prints a table of the medians of the rounds' medians, and of
the ratios round by round.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.harness.machine import describe
from benchmarks.tflite_models.__main__ import inputs_of

WARM_S, TIMED_S = 1.0, 1.0
RUNTIMES = ("mansard", "litert")


def call_of(runtime: str, path: Path, threads: int) -> Callable[[], Any]:
    """A call of the model with the same inputs every time."""
    inputs = inputs_of(path)
    if runtime == "mansard":
        import mansard

        model = mansard.compile(path, devices=("cpu",))
        return lambda: model(*inputs)
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(str(path), num_threads=threads)
    details = interpreter.get_input_details()
    for detail, x in zip(details, inputs, strict=True):
        interpreter.resize_tensor_input(detail["index"], x.shape)
    interpreter.allocate_tensors()

    def call() -> None:
        for detail, x in zip(details, inputs, strict=True):
            interpreter.set_tensor(detail["index"], x)
        interpreter.invoke()

    return call


def median_ms(runtime: str, path: Path, threads: int) -> float:
    """The median of a call after warming up, in milliseconds."""
    call = call_of(runtime, path, threads)
    end = time.perf_counter() + WARM_S
    while time.perf_counter() < end:
        call()
    times = []
    end = time.perf_counter() + TIMED_S
    while time.perf_counter() < end:
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return statistics.median(times) * 1e3


def _apart(runtime: str, path: Path, threads: int) -> float:
    command = [sys.executable, "-m", "benchmarks.tflite_models.speed", str(path.parent), "--child", runtime]
    command += ["--only", path.stem, "--threads", str(threads)]
    environment = os.environ | {"OMP_NUM_THREADS": str(threads), "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    return float(done.stdout.splitlines()[-1])


def main() -> None:
    """Time models in a folder and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", help="models whose name has this regular expression")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--child", choices=RUNTIMES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(median_ms(options.child, options.folder / f"{options.only}.tflite", options.threads))
        return
    versions = {name: importlib.metadata.version(name) for name in ("mansard", "ai-edge-litert")}
    program = "benchmarks.tflite_models.speed"
    print(json.dumps(describe(options.threads, versions, program), indent=1))
    print("\n| model | Mansard | LiteRT | ratio |\n| --- | ---: | ---: | ---: |")
    for path in sorted(options.folder.glob("*.tflite")):
        if not re.search(options.only, path.stem):
            continue
        rounds = [[_apart(r, path, options.threads) for r in RUNTIMES] for _ in range(options.rounds)]
        ours, theirs = (statistics.median(each) for each in zip(*rounds, strict=True))
        ratio = statistics.median(mine / other for mine, other in rounds)
        print(f"| {path.stem} | {ours:.3f} ms | {theirs:.3f} | {ratio:.2f} |", flush=True)


if __name__ == "__main__":
    main()
