"""One step in a process of its own: ``python -m benchmarks.harness.step RESULT WORK THREADS STEP``.

STEP is ``prepare NETWORK``, ``build CASE PEER``, ``run CASE PEER`` or ``versions PEER``. The answer is
written to the file RESULT as JSON.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.harness.cases import CASES, Case, relative_error
from benchmarks.harness.peers import PEERS, Peer

WARM_S = 0.3  # of calls that are not counted, and at least three of them
TIMED_S = 1.5  # of calls that are counted, and from 10 (7 above a second each) to 1000 of them
PAGE = os.sysconf("SC_PAGE_SIZE")


def folder(work: Path, case: Case, peer: Peer) -> Path:
    """Where a peer's files for a case are."""
    return work / case.name / (peer.shares_build_of or peer.name)


def resident_mb() -> float:
    """Resident memory of this process now, in 10^6 bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE / 1e6


def peak_mb() -> float:
    """The most resident memory this process has had, in 10^6 bytes.

    ``VmHWM`` belongs to the address space. ``ru_maxrss`` would not do: a process starts with that of the one
    it was forked from.
    """
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise OSError("/proc/self/status has no VmHWM: is this Linux?")


def prepare(name: str, work: Path) -> dict[str, Any]:
    """Write weights, inputs and references."""
    from benchmarks.harness import networks

    networks.prepare(name, work)
    return {}


def build(peer: Peer, case: Case, work: Path) -> dict[str, Any]:
    """Time from a torch module in memory to files on disk: export, conversion and compilation."""
    from benchmarks.harness import networks

    place = folder(work, case, peer)
    if case.dtype == "int8":
        from benchmarks.harness import quantised

        module: Any = quantised.model_file(case, work)
    else:
        module = networks.entry(case, work)
    args = networks.tensors(case, case.inputs(work))
    begin = time.perf_counter()
    peer.build(case, module, args, place)
    return {"compile_s": time.perf_counter() - begin, "compile_peak_mb": peak_mb()}


def run(peer: Peer, case: Case, work: Path, threads: int) -> dict[str, Any]:
    """Load the files, call once, warm up, time calls, then compare with the reference."""
    arrays = case.inputs(work)
    peer.imports()
    base, begin = resident_mb(), time.perf_counter()
    call = peer.load(case, folder(work, case, peer), work, arrays, threads)
    loaded = time.perf_counter()
    output = call().copy()
    first_s = time.perf_counter() - loaded
    times = time_calls(call)
    peak = peak_mb()
    return {
        "load_s": loaded - begin,
        "first_s": first_s,
        **latency(times),
        "runs": len(times),
        "peak_rss_mb": peak,
        "live_mb": peak - base,
        "max_rel_err": relative_error(output, case.reference(work)),
        **peer.details(),
    }


def time_calls(call: Any) -> list[float]:
    """Seconds of each counted call."""

    def once() -> float:
        begin = time.perf_counter()
        call()
        return time.perf_counter() - begin

    warm = [once()]
    while len(warm) < 3 or sum(warm) < WARM_S:
        warm.append(once())
    min_calls = 7 if warm[-1] > 1 else 10
    wanted = min(1000, max(min_calls, round(TIMED_S / warm[-1])))
    return [once() for _ in range(wanted)]


def latency(times: list[float]) -> dict[str, float]:
    """Median, 95th percentile (nearest rank) and minimum in milliseconds."""
    ordered = sorted(times)
    return {
        "median_ms": statistics.median(ordered) * 1e3,
        "p95_ms": ordered[-(-len(ordered) * 95 // 100) - 1] * 1e3,
        "min_ms": ordered[0] * 1e3,
    }


def versions(peer: Peer) -> dict[str, Any]:
    """Versions of the peer's packages in this environment; those missing are None."""
    import importlib.metadata  # 3 MB that a measured process need not hold

    versions: dict[str, str | None] = {}
    for package in peer.packages:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = None
    return versions


def main(arguments: list[str]) -> None:
    result, work, threads, step, *names = arguments
    place = Path(work)
    if step == "prepare":
        answer = prepare(names[0], place)
    elif step == "versions":
        answer = versions(PEERS[names[0]])
    elif step == "build":
        answer = build(PEERS[names[1]], CASES[names[0]], place)
    else:
        answer = run(PEERS[names[1]], CASES[names[0]], place, int(threads))
    Path(result).write_text(json.dumps(answer))
    sys.stdout.flush()
    os._exit(0)  # some runtimes wait for ever, or crash, when their threads are taken down


if __name__ == "__main__":
    main(sys.argv[1:])
