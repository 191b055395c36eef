"""What a loaded model costs a process: weights stay in the file, one copy, and little is imported."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support import cpu_kernels
from support.paths import TESTS
from support.plans.device import reference

from mansard.artifact.resources import MemoryResources, write_artifact
from mansard.dtypes import DType
from mansard.plan.plan import (
    BarrierStep,
    BindingSpec,
    DeviceProgram,
    DispatchStep,
    Plan,
    Segment,
    TensorSpec,
    ValueSpec,
    WeightSpec,
)

WEIGHTS, ELEMENTS = 12, 1 << 20
"""Twelve weights of 4 MiB; y = x + the sum of all of them."""

HEAVY = (
    "asyncio",
    "concurrent.futures",
    "email",
    "hashlib",
    "importlib.metadata",
    "logging",
    "numpy.ma",
    "zipfile",
)

SCRIPT = """
import json, re, sys
import numpy as np

def status():
    text = open("/proc/self/status").read()
    return {name: int(size) << 10 for name, size in re.findall(r"^(\\w+):\\s+(\\d+) kB", text, re.M)}

def mapping():
    text = open("/proc/self/smaps").read()
    blocks = [b for b in re.split(r"\\n(?=[0-9a-f]+-[0-9a-f]+ )", text) if sys.argv[1] in b.split("\\n")[0]]
    fields = [dict(re.findall(r"^(\\w+): +(\\d+) kB", b, re.M)) for b in blocks]
    return {name: sum(int(f[name]) << 10 for f in fields) for name in ("Rss", "Anonymous")}

import mansard
before, known = status(), set(sys.modules)
model = mansard.load(sys.argv[1], **json.loads(sys.argv[2]))
loaded = mapping()
x = np.ones(int(sys.argv[3]), np.float32)
first = model(x)
after, mapped = status(), mapping()
ledger = model.memory()
model(x)
print(json.dumps({
    "loaded": loaded, "mapped": mapped, "sum": float(first.sum()),
    "anonymous": after["RssAnon"] - before["RssAnon"] - x.nbytes - first.nbytes,
    "modules": sorted(set(sys.modules) - known), "ledger": ledger.to_json(),
    "growth": status()["RssAnon"] - after["RssAnon"],
}))
"""


@pytest.fixture(scope="module")
def artifact(tmp_path_factory) -> Path:
    spec = cpu_kernels.spec("add")
    code = reference(spec, "k0", cpu_kernels.CHUNK, ELEMENTS)
    size = 4 * ELEMENTS
    last = 2 * WEIGHTS - 1
    values = [ValueSpec(0, "x", "input", 0, size), ValueSpec(last + 1, "y", "output", 0, size)]
    steps: list[DispatchStep | BarrierStep] = []
    for number in range(WEIGHTS):
        weight, total = 1 + 2 * number, 2 + 2 * number
        values.append(ValueSpec(weight, f"w{number}", "constant", 0, size, weight=number))
        if total != last + 1:
            values.append(ValueSpec(total, f"t{number}", "transient", 0, size, first=number, last=number + 1))
        bindings = tuple(BindingSpec(v) for v in (max(0, total - 2), weight, total))
        grid = (-(-ELEMENTS // cpu_kernels.CHUNK), 1, 1)
        steps += [DispatchStep(0, "add", bindings, (ELEMENTS,), grid, f"add {number}"), BarrierStep()]
    plan = Plan(
        "sum",
        (),
        (TensorSpec("x", DType.F32, (ELEMENTS,), 0),),
        (TensorSpec("y", DType.F32, (ELEMENTS,), last + 1),),
        tuple(values),
        tuple(WeightSpec(f"w{n}", DType.F32, (ELEMENTS,)) for n in range(WEIGHTS)),
        (DeviceProgram("cpu", "cpu", spec.target, (code,), (Segment((), tuple(steps)),)),),
    )
    loads = [(w, lambda n=n: np.full(ELEMENTS, n, np.float32)) for n, w in enumerate(plan.weights)]
    path = tmp_path_factory.mktemp("live") / "sum.mansard"
    write_artifact(path, plan, MemoryResources({"k0": bytes(spec.code)}, loads))
    return path


def measure(path: Path, **options: object) -> dict:
    command = [sys.executable, "-c", SCRIPT, str(path), json.dumps(options), str(ELEMENTS)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    report: dict = json.loads(done.stdout)
    assert report["sum"] == ELEMENTS * (1 + sum(range(WEIGHTS)))
    return report


@pytest.mark.resident_memory
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("verify", ["code", "full"])
def test_weights_are_used_where_the_file_is_mapped(artifact, verify):
    weights, value = WEIGHTS * ELEMENTS * 4, ELEMENTS * 4
    report = measure(artifact, verify=verify)
    assert report["loaded"]["Rss"] < weights // 4  # nothing is read before a kernel reads it, or kept
    assert report["mapped"]["Rss"] >= weights
    assert report["mapped"]["Anonymous"] == 0  # no page of the mapping was copied
    # Two transients, and Python's own share; a copy of the weights would be 48 MiB.
    assert report["anonymous"] < 2 * value + (10 << 20)
    assert report["growth"] < value + (1 << 20)  # the second result
    ledger = report["ledger"]
    assert ledger["totals"]["weights"] == weights
    assert ledger["lower_bound"] == 2 * value
    assert ledger["totals"]["activations"] == 2 * value


def test_loading_and_calling_imports_little(artifact):
    imported = set(measure(artifact)["modules"])
    assert not imported & set(HEAVY)
    assert not [
        name for name in imported if name.startswith(("mansard.drivers.vulkan", "mansard.drivers.null"))
    ]


STATE_SCRIPT = """
import json, re, sys
import numpy as np
from support import cpu_kernels
from mansard.api import Model
from mansard.plan.plan import *
from mansard.artifact.resources import MemoryResources
from mansard.dtypes import DType

def anonymous():
    return int(re.search(r"RssAnon:\\s+(\\d+)", open("/proc/self/status").read())[1]) << 10

# The state s is a long vector, of which a call adds x to the first elements only, after y = s + x.
spec, count, size = cpu_kernels.spec("add"), 1 << 16, 256 << 20
kernels = tuple((e.name, e.bindings, e.params, e.workgroup, e.offset) for e in spec.entries)
values = (
    ValueSpec(0, "x", "input", 0, 4 * count),
    ValueSpec(1, "s", "state", 0, size),
    ValueSpec(2, "y", "output", 0, 4 * count),
)
grid = (-(-count // cpu_kernels.CHUNK), 1, 1)
y = DispatchStep(0, "add", tuple(map(BindingSpec, (0, 1, 2))), (count,), grid, "y")
step = DispatchStep(0, "add", tuple(map(BindingSpec, (0, 1, 1))), (count,), grid, "add")
reference = ExecutableRef("k", spec.format, spec.target, spec.requires, kernels)
slot = DeviceProgram("cpu", "cpu", spec.target, (reference,), (Segment((), (y, BarrierStep(), step)),))
x = TensorSpec("x", DType.F32, (count,), 0)
y = TensorSpec("y", DType.F32, (count,), 2)
plan = Plan("sum", (), (x,), (y,), values, (), (slot,), ((1, 1),))
model = Model(plan, MemoryResources({"k": bytes(spec.code)}, []))
before, ones = anonymous(), np.ones(count, np.float32)
sums = [float(model(ones)[0]) for _ in range(3)]
model.reset_states()
sums.append(float(model(ones)[0]))
print(json.dumps({"sums": sums, "grown": anonymous() - before, "states": model.memory().totals["states"]}))
"""


def test_states_take_memory_as_far_as_they_are_used():
    command = [sys.executable, "-c", STATE_SCRIPT]
    here = {**os.environ, "PYTHONPATH": str(TESTS)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=here)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["sums"] == [1, 2, 3, 1]
    assert report["states"] == 256 << 20
    assert report["grown"] < 32 << 20
