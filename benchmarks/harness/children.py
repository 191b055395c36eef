"""Running steps: each in a process of its own, in the peer's environment, on the same processors."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.harness.cases import CASES, Case
from benchmarks.harness.paths import ROOT
from benchmarks.harness.peers import PEERS, Peer
from benchmarks.harness.step import folder


class StepFailed(Exception):  # noqa: N818  # not an error of the program: a peer's answer
    """A step did not give a result; the text says which step and why, in one line."""


@dataclass
class Runner:
    """Runs steps of peers.

    ``work`` holds prepared weights and built files, ``venvs`` maps peers to virtual environments (those not
    named use ``work/venvs/PEER`` if it exists, else this interpreter), ``limit`` is in seconds for one step.
    """

    work: Path
    threads: int
    venvs: dict[str, Path] = field(default_factory=dict)
    limit: float = 900

    def python(self, peer: Peer) -> Path:
        """The interpreter that measures a peer."""
        venv = self.venvs.get(peer.name) or self.work / "venvs" / (peer.shares_build_of or peer.name)
        inside = venv / "bin" / "python"
        return inside if peer.name in self.venvs or inside.exists() else Path(sys.executable)

    def versions(self, peer: Peer) -> dict[str, str]:
        """Versions of what a peer consists of. Raises StepFailed naming what is missing and its command."""
        try:
            versions = self._step(peer, "versions", peer.name)
        except StepFailed as failure:  # an environment without NumPy, or none
            raise StepFailed(f"not installed ({failure}): {peer.install}") from None
        missing = [package for package, version in versions.items() if version is None]
        if missing:
            raise StepFailed(f"not installed ({', '.join(missing)}): {peer.install}")
        return versions

    def prepare(self, case: Case) -> None:
        """Write a network's weights, inputs and references, unless they are there."""
        done = self.work / case.network / "prepared"
        if not done.exists():
            self._step(PEERS["torch-eager"], "prepare", case.network)
            done.touch()

    def build(self, peer: Peer, case: Case, *, again: bool) -> dict[str, Any]:
        """Build a peer's files, or answer what building them took when they are there already.

        A compile cache is empty before. Where the peer says so, the build runs again to time it with the
        cache filled, as ``recompile_s``.
        """
        place = folder(self.work, case, peer)
        if not peer.builds:
            return {}
        memo = place / "build.json"
        if memo.exists() and not again:
            return json.loads(memo.read_text())
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        answer = self._step(peer, "build", case.name, peer.name)
        if peer.recompiles:
            second = self._step(peer, "build", case.name, peer.name)
            answer["recompile_s"] = second["compile_s"]
        memo.write_text(json.dumps(answer))
        os.sync()  # gigabytes still on their way to the disk would disturb the runs
        return answer

    def run(self, peer: Peer, case: Case) -> dict[str, Any]:
        """Time a peer once."""
        answer = self._step(peer, "run", case.name, peer.name)
        files = [f for f in peer.files(case, folder(self.work, case, peer), self.work) if f.exists()]
        answer["artifact_mb"] = sum(f.stat().st_size for f in files) / 1e6
        return answer

    def _step(self, peer: Peer, step: str, *names: str) -> dict[str, Any]:
        python = self.python(peer)
        if not python.exists():
            raise StepFailed(f"no interpreter at {python}")
        with tempfile.TemporaryDirectory() as scratch:
            result = Path(scratch) / "result.json"
            command = [
                python,
                "-m",
                "benchmarks.harness.step",
                result,
                self.work,
                str(self.threads),
                step,
                *names,
            ]
            code, output = self._spawn(command, self._environment(peer, names, scratch), Path(scratch))
            if result.exists():
                return json.loads(result.read_text())
        log = self.work / "logs" / f"{'-'.join([*names, step])}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text(output)
        if code is None:
            raise StepFailed(f"{step}: stopped after {self.limit:g} s")
        raise StepFailed(f"{step}: {reason(output)} (exit status {code})")

    def _environment(self, peer: Peer, names: tuple[str, ...], scratch: str) -> dict[str, str]:
        changes = {
            "PYTHONPATH": str(ROOT),
            "PATH": f"{self.python(peer).parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONWARNINGS": "ignore",
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": str(self.threads),
            **peer.environment(self.threads),
        }
        if peer.cache_variable:
            in_case = len(names) == 2
            cache = folder(self.work, CASES[names[0]], peer) / "cache" if in_case else Path(scratch)
            changes[peer.cache_variable] = str(cache)
        return {**os.environ, **changes}

    def _spawn(
        self, command: list[Any], environment: dict[str, str], scratch: Path
    ) -> tuple[int | None, str]:
        """Exit status (None when the time was over) and output of a process and those it starts."""
        chosen = processors(self.threads)
        # A file: a pipe would stay open as long as any worker that the process leaves behind.
        with (scratch / "output").open("w+", errors="replace") as output:
            process = subprocess.Popen(
                [str(part) for part in command],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=lambda: os.sched_setaffinity(0, chosen),  # noqa: PLW1509  # no threads here
            )
            try:
                code = process.wait(self.limit)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            output.seek(0)
            return code, output.read()


def processors(count: int) -> set[int]:
    """That many of the CPUs this process may use, each on a core of its own as far as there are cores.

    Peers differ in what their thread options cover; the CPUs they get do not.
    """
    first: dict[str, int] = {}
    allowed = sorted(os.sched_getaffinity(0))
    for cpu in allowed:
        siblings = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        first.setdefault(siblings.read_text() if siblings.exists() else str(cpu), cpu)
    cores = list(first.values())
    return set([*cores, *(cpu for cpu in allowed if cpu not in cores)][:count])


def reason(output: str) -> str:
    """The line of a failed step's output that says most: a compiler's first error, or the last exception."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    compiler = [line[line.index("error:") :] for line in lines if " error: " in line][:1]
    raised = [
        line for line in lines if line.partition(":")[0].endswith(("Error", "Exception", "NotImplemented"))
    ]
    return (compiler or raised[-1:] or lines[-1:] or ["no output"])[0][:200]
