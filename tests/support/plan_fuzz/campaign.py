"""A campaign: mutants are made and checked in this process; those that pass run in another one."""

from __future__ import annotations

import collections
import dataclasses
import hashlib
import json
import random
import time
import traceback
from collections.abc import Iterable, Sequence

from mansard.errors import ArtifactError
from mansard.plan.check import check_plan
from mansard.plan.plan import DispatchStep, Plan, Step
from mansard.plan.serialise import plan_from_json
from support.plan_fuzz.mutations import Mutator
from support.plan_fuzz.runner_process import Run, RunnerProcess
from support.plan_fuzz.seeds import Seed

CHECK_SECONDS = 5.0
"""Of the processor: what reading and checking a mutant may take."""
SIGNED_SHARE = 0.02
"""The part of accepted mutants that run from a file of their own."""


@dataclasses.dataclass
class Finding:
    """A mutant that did what no plan may do."""

    seed: str
    number: int
    changes: list[str]
    problem: str
    plan: str

    def __str__(self) -> str:
        return f"{self.seed}, mutant {self.number}: {'; '.join(self.changes)}\n{self.problem}"


@dataclasses.dataclass
class Counts:
    """What became of the mutants of a campaign."""

    made: int = 0
    unreadable: int = 0
    refused: int = 0
    accepted: int = 0
    repeated: int = 0
    ran: int = 0
    completed: int = 0
    errors: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)

    def __str__(self) -> str:
        errors = ", ".join(f"{count} {name}" for name, count in self.errors.most_common())
        return (
            f"{self.made} mutants: {self.unreadable} cannot be read, {self.refused} refused, "
            f"{self.accepted} accepted ({self.repeated} of them mean what another one does); {self.ran} ran, "
            f"{self.completed} to their end, others in errors ({errors or 'none'})"
        )


class Campaign:
    """Mutants of seeds, numbered; mutant ``n`` of a random state is the same every time."""

    def __init__(self, seeds: Sequence[Seed], state: int, run_share: float = 1.0) -> None:
        """``run_share`` is the part of the accepted plans for GPUs that run."""
        self.seeds, self.state, self.run_share = seeds, state, run_share
        self.counts, self.findings = Counts(), list[Finding]()
        self._seen: set[bytes] = set()
        paths = [seed.path for seed in seeds]
        self._runners = {guarded: RunnerProcess(paths, guarded=guarded) for guarded in (True, False)}

    def finish(self) -> None:
        """Wait for the plans that run, and end the processes."""
        for runner in self._runners.values():
            self._take(runner.finish())

    def step(self, number: int) -> None:
        """Make mutant ``number``, check it, and have it run if it is accepted."""
        rng = random.Random(f"{self.state} {number}")
        which = rng.randrange(len(self.seeds))
        seed, mutator = self.seeds[which], Mutator(rng)
        text = json.dumps(mutator.mutate(seed.data))
        finding = Finding(seed.name, number, mutator.log, "", text)
        self.counts.made += 1
        begin, plan = time.thread_time(), None
        try:
            plan = plan_from_json(text, seed.executables)
            check_plan(plan)
        except ArtifactError:
            self.counts.unreadable += plan is None
            self.counts.refused += plan is not None
        except Exception:
            self._found(finding, f"FOREIGN in a check\n{traceback.format_exc()}")
        else:
            self.counts.accepted += 1
            self._run(which, plan, rng, finding)
        if time.thread_time() - begin > CHECK_SECONDS:
            self._found(finding, f"SLOW: {time.thread_time() - begin:.1f} s")

    def _run(self, which: int, plan: Plan, rng: random.Random, finding: Finding) -> None:
        """Run an accepted plan, unless one that means the same has run."""
        digest = hashlib.sha256(f"{which} {meaning(plan)}".encode()).digest()[:12]
        if digest in self._seen:
            self.counts.repeated += 1
            return
        self._seen.add(digest)
        cpu_only = self.seeds[which].drivers == {"cpu"}
        if cpu_only or rng.random() < self.run_share:
            run = Run(which, finding.plan, rng.random() < SIGNED_SHARE, finding)
            self._take(self._runners[cpu_only].submit(run))

    def _take(self, answers: Iterable[tuple[Run, str]]) -> None:
        for run, answer in answers:
            self.counts.ran += 1
            kind = answer.partition(":")[0]
            if answer == "ok":
                self.counts.completed += 1
            elif kind in ("CRASH", "HANG") or answer.startswith("FOREIGN"):
                assert isinstance(run.tag, Finding)
                self._found(run.tag, answer)
            else:
                self.counts.errors[kind] += 1

    def _found(self, finding: Finding, problem: str) -> None:
        self.findings.append(dataclasses.replace(finding, problem=problem))


def meaning(plan: Plan) -> str:
    """A plan without what is there for people."""

    def bare(step: Step) -> Step:
        if isinstance(step, DispatchStep):
            return dataclasses.replace(step, location="")
        return step

    devices = [
        (
            device.driver,
            [r.entry for r in device.executables],
            [(s.wait, tuple(map(bare, s.steps))) for s in device.segments],
        )
        for device in plan.devices
    ]
    values = [dataclasses.replace(value, name="") for value in plan.values]
    weights = [dataclasses.replace(weight, source="") for weight in plan.weights]
    rest = (plan.dims, plan.inputs, plan.outputs, plan.states, [a.value for a in plan.asserts], plan.splits)
    return repr((rest, devices, values, weights, plan.variants))
