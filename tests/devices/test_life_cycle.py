"""Loading, forking and the end of the process: nothing hangs, and nothing is left behind."""

from __future__ import annotations

import gc
import multiprocessing
import subprocess
import sys
import textwrap
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


@pytest.fixture(params=DEVICES)
def path(request, tmp_path) -> Path:
    """A saved model for one device."""
    with compiled(product(), request.param) as model:
        model.save(tmp_path / f"{request.param}.mansard")
    return tmp_path / f"{request.param}.mansard"


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


@pytest.mark.parametrize(
    "code",
    [
        "late.append(lambda: say(lambda: model(x).sum()))",
        "late.append(lambda: say(lambda: mansard.load(path)(x).sum()))",
        "late.append(lambda: say(lambda: asyncio.run(model.run_async(x)).sum()))",
        "late.append(lambda: say(lambda: model.run_in_batches(x, size=1).sum()))",
    ],
)
def test_a_call_by_the_last_exit_handler_is_answered(path, code):
    assert float(output(path, code)) == pytest.approx(Y.sum(), abs=0.1)


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

    before = load(60)
    assert load(240) - before < 24 << 20, "a load and close leaves memory behind"


def answer(path: str) -> float:
    """In a child: load, call, close."""
    with mansard.load(path) as model:
        return float(model(X).sum())


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
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
