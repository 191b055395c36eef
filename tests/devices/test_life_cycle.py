"""Loading, forking and the end of the process: nothing hangs, and nothing is left behind."""

from __future__ import annotations

import functools
import gc
import multiprocessing
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from support.graph_runner import compiled
from support.signal_stress import WEIGHT, product, resident

import mansard

DEVICES = ["cpu", pytest.param("vulkan", marks=pytest.mark.vulkan)]
X = np.full((4, 64), 2, np.float32)
Y = X @ WEIGHT
START = """
    import asyncio, atexit, os, sys
    late = []
    atexit.register(lambda: [each() for each in late])  # before anything of Mansard: the last to be called
    import mansard, numpy as np
    path, x = sys.argv[1], np.full((4, 64), 2, np.float32)
    model = mansard.load(path)
    model(x)
    def say(call):
        try:
            text = f"{call():.1f}"
        except mansard.MansardError as error:
            text = f"{type(error).__name__}: {error}"
        os.write(1, text.encode())
"""


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Callable[[str], Path]:
    """Where the model for a device is saved."""
    folder = tmp_path_factory.mktemp("models")

    @functools.cache
    def save(device: str) -> Path:
        with compiled(product(), device) as model:
            model.save(folder / f"{device}.mansard")
        return folder / f"{device}.mansard"

    return save


@pytest.fixture(params=DEVICES)
def path(request, saved) -> Path:
    """A saved model for one device."""
    return saved(request.param)


def output(path: Path, code: str) -> str:
    """What a process prints that ends by itself, behind `START`."""
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(START) + textwrap.dedent(code), str(path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout


LATE = [
    "late.append(lambda: say(lambda: model(x).sum()))",
    "late.append(lambda: say(lambda: mansard.load(path)(x).sum()))",
    "late.append(lambda: say(lambda: asyncio.run(model.run_async(x)).sum()))",
    "late.append(lambda: say(lambda: model.run_in_batches(x, size=1).sum()))",
]


# Every kind of call and every device; the other pairs of them repeat a kind on the other device.
@pytest.mark.parametrize(
    ("path", "code"),
    [
        pytest.param("cpu", LATE[0]),
        pytest.param("cpu", LATE[1], marks=pytest.mark.slow),
        pytest.param("cpu", LATE[2], marks=pytest.mark.slow),
        pytest.param("cpu", LATE[3]),
        pytest.param("vulkan", LATE[0], marks=[pytest.mark.vulkan, pytest.mark.slow]),
        pytest.param("vulkan", LATE[1], marks=pytest.mark.vulkan),
        pytest.param("vulkan", LATE[2], marks=pytest.mark.vulkan),
        pytest.param("vulkan", LATE[3], marks=[pytest.mark.vulkan, pytest.mark.slow]),
    ],
    indirect=["path"],
)
def test_a_call_by_the_last_exit_handler_is_answered(path, code):
    assert float(output(path, code)) == pytest.approx(Y.sum(), abs=0.1)


# With a device that has threads and memory of its own; the CPU's end is that of the exit handlers above.
ON_VULKAN = [
    pytest.param("cpu", marks=pytest.mark.slow),
    pytest.param("vulkan", marks=pytest.mark.vulkan),
]


@pytest.mark.parametrize("path", ON_VULKAN, indirect=True)
def test_a_call_by_a_destructor_in_the_interpreter_that_ends_is_refused(path):
    code = """
        class Last:
            def __init__(self): self.say = say
            def __del__(self):
                self.say(lambda: model(x).sum())
        import builtins
        builtins.last, say.__globals__["kept"] = Last(), [os, mansard]
        builtins.model, builtins.x, builtins.os, builtins.mansard = model, x, os, mansard
    """
    assert "the interpreter is shutting down" in output(path, code)


@pytest.mark.parametrize("path", ON_VULKAN, indirect=True)
def test_daemon_threads_that_call_do_not_delay_the_end(path):
    code = """
        import threading, time
        def serve():
            while True: model(x)
        for _ in range(3): threading.Thread(target=serve, daemon=True).start()
        time.sleep(0.2)
        late.append(model.close)
    """
    assert output(path, code) == ""


@pytest.mark.resident_memory
def test_loading_and_closing_leaves_nothing_behind(path):
    def load(times: int) -> int:
        for _ in range(times):
            mansard.load(path).close()
        gc.collect()
        return resident()

    before = load(30)
    assert load(120) - before < 12 << 20, "a load and close leaves memory behind"


def answer(path: str) -> float:
    """In a child: load, call, close."""
    with mansard.load(path) as model:
        return float(model(X).sum())


# Either way of starting and either device; neither depends on the other.
@pytest.mark.parametrize(
    ("path", "method"),
    [
        pytest.param("cpu", "spawn", marks=pytest.mark.slow),
        pytest.param("vulkan", "spawn", marks=pytest.mark.vulkan),
        pytest.param("cpu", "forkserver"),
        pytest.param("vulkan", "forkserver", marks=[pytest.mark.vulkan, pytest.mark.slow]),
    ],
    indirect=["path"],
)
def test_a_process_of_its_own_may_load_what_the_parent_uses(path, method):
    with mansard.load(path) as model, multiprocessing.get_context(method).Pool(1) as pool:
        model(X)
        assert pool.apply_async(answer, (str(path),)).get(60) == pytest.approx(Y.sum(), abs=0.1)
        assert np.allclose(model(X), Y, rtol=1e-4)


@pytest.mark.threads_after_fork
def test_a_forked_process_is_told_what_works_and_that_works(path):
    device = path.stem
    code = """
        child = os.fork()
        if child == 0:
            say(lambda: model(x).sum())
            os.write(1, b"|")
            say(lambda: mansard.load(path)(x).sum())
            os._exit(0)
        os.waitpid(child, 0)
        os.write(1, b"|")
        say(lambda: model(x).sum())
    """
    old, new, parent = output(path, code).split("|")
    assert old.startswith("DeviceError: the model was loaded before this process was forked off")
    assert float(parent) == pytest.approx(Y.sum(), abs=0.1)
    if device == "cpu":
        assert float(new) == pytest.approx(Y.sum(), abs=0.1)
    else:  # its drivers do not survive a fork: an error at once says so, and how else
        assert '"spawn" or "forkserver"' in new
        assert '"spawn" or "forkserver"' in old
