"""The worker process: replies, crashes, limits, and that nothing is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest
from support.paths import ROOT

from mansard.errors import ImportModelError
from mansard.frontends.linalg.module import PREPARE, import_mlir
from mansard.frontends.mlir_worker import passes, pool
from mansard.frontends.mlir_worker.process import Limits, Worker, WorkerDiedError, WorkerIdleError

ADD = """
func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> {
  %0 = arith.addf %a, %a : tensor<4xf32>
  return %0 : tensor<4xf32>
}
"""
UNKNOWN = """
func.func @main(%a: !torch.vtensor<[4],f32>) -> !torch.vtensor<[4],f32> {
  %0 = torch.operator "torch.not.known"(%a) : (!torch.vtensor<[4],f32>) -> !torch.vtensor<[4],f32>
  return %0 : !torch.vtensor<[4],f32>
}
"""
LIMITS = Limits(cpu_seconds=60, wall_seconds=600, memory_bytes=4 << 30)
STALL = (
    "func.func(" + ", ".join(["canonicalize{max-iterations=-1 test-convergence=true}", "cse"] * 100_000) + ")"
)
"""Minutes of native code."""


@pytest.fixture
def worker() -> Worker:
    worker = Worker()
    yield worker
    worker.close()


@pytest.fixture(scope="module")
def lasting_worker() -> Worker:
    """One worker for the requests that leave it running."""
    worker = Worker()
    yield worker
    worker.close()


def _pid(worker: Worker) -> int:
    return worker._process.pid


def _is_alive(pid: int) -> bool:
    """Whether a process runs; a zombie has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except FileNotFoundError:
        return False


def _wait_for_end(pid: int, seconds: float = 20.0) -> bool:
    deadline = time.monotonic() + seconds
    while _is_alive(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not _is_alive(pid)


# Requests ---------------------------------------------------------------------------------------
def test_a_worker_lowers_one_module_after_another(lasting_worker: Worker) -> None:
    for _ in range(2):
        lowered = lasting_worker.lower(ADD.encode(), [PREPARE], LIMITS)
        assert "linalg.generic" in str(passes.parse(lowered, passes.new_context()))
    assert lowered == passes.lower(ADD.encode(), [PREPARE])


def test_diagnostics_come_back_and_the_worker_goes_on(lasting_worker: Worker) -> None:
    worker = lasting_worker
    with pytest.raises(passes.PipelineError, match="expected") as raised:
        worker.lower(b"func.func @main(", [PREPARE], LIMITS)
    assert not raised.value.parsed
    with pytest.raises(passes.PipelineError, match=r"failed to legalize .*not\.known") as raised:
        worker.lower(UNKNOWN.encode(), ["torch-backend-to-linalg-on-tensors-backend-pipeline"], LIMITS)
    assert raised.value.parsed
    with pytest.raises(WorkerDiedError, match="no-such-pass"):
        worker.lower(ADD.encode(), ["no-such-pass"], LIMITS)
    assert worker.lower(ADD.encode(), [PREPARE], LIMITS)


def test_modules_larger_than_a_sockets_buffer(lasting_worker: Worker) -> None:
    text = ADD + "//" + "x" * (8 << 20)
    assert lasting_worker.lower(text.encode(), [PREPARE], LIMITS) == passes.lower(ADD.encode(), [PREPARE])


# Crashes and limits -----------------------------------------------------------------------------
@pytest.mark.parametrize(
    "number",
    [
        # SIGSEGV and SIGKILL have messages of their own.
        pytest.param(signal.SIGFPE, marks=pytest.mark.slow),
        signal.SIGSEGV,
        pytest.param(signal.SIGABRT, marks=pytest.mark.slow),
        signal.SIGKILL,
    ],
)
def test_a_worker_that_is_killed_is_an_error_with_the_signals_name(worker: Worker, number: int) -> None:
    worker.lower(ADD.encode(), [], LIMITS)
    threading.Timer(0.1, os.kill, (_pid(worker), number)).start()
    with pytest.raises(WorkerDiedError, match=f"was killed by {signal.Signals(number).name}"):
        worker.lower(ADD.encode(), [STALL], LIMITS)


@pytest.mark.parametrize(
    "limits, reason",
    [
        (Limits(0.2, 600, 4 << 30), r"took more than 0\.2 s of CPU time"),
        (Limits(60, 0.2, 4 << 30), r"took more than 0\.2 s"),
    ],
)
def test_a_stall_is_an_error(worker: Worker, limits: Limits, reason: str) -> None:
    started = time.monotonic()
    with pytest.raises(WorkerDiedError, match=reason):
        worker.lower(ADD.encode(), [STALL], limits)
    assert time.monotonic() - started < 30


def test_too_much_memory_is_an_error(worker: Worker) -> None:
    ops = "\n".join(f"%{i} = arith.constant {i} : i64" for i in range(200_000))
    text = f"func.func @main() {{\n{ops}\nreturn }}"
    with pytest.raises(WorkerDiedError, match=r"MemoryError|memory was limited to 16 MiB"):
        worker.lower(text.encode(), [], Limits(60, 600, 16 << 20))


def test_limits_are_per_request(lasting_worker: Worker) -> None:
    for _ in range(2):
        lasting_worker.lower(ADD.encode(), [PREPARE], Limits(0.5, 1.0, 4 << 30))
        time.sleep(0.6)
    assert lasting_worker.lower(ADD.encode(), [PREPARE], LIMITS)


# The pool ---------------------------------------------------------------------------------------
def test_one_worker_serves_the_imports_of_a_process() -> None:
    workers = pool.Workers()
    try:
        workers.warm()
        (first,) = workers._idle
        for _ in range(3):
            workers.lower(ADD.encode(), [PREPARE], LIMITS)
        assert workers._idle == [first]
    finally:
        workers.close()
    assert not _is_alive(_pid(first))


def test_after_a_crash_another_worker_serves() -> None:
    workers = pool.Workers()
    try:
        with pytest.raises(WorkerDiedError):
            workers.lower(ADD.encode(), [STALL], Limits(0.2, 600, 4 << 30))
        assert workers.lower(ADD.encode(), [PREPARE], LIMITS)
    finally:
        workers.close()


def test_a_worker_that_ended_while_it_was_idle_is_replaced() -> None:
    workers = pool.Workers()
    try:
        workers.warm()
        (idle,) = workers._idle
        idle.lower(ADD.encode(), [], LIMITS)
        idle._process.terminate()
        idle._process.wait()
        idle._process.returncode = 0  # as when it ends by itself
        assert workers.lower(ADD.encode(), [PREPARE], LIMITS)
    finally:
        workers.close()


def test_threads_lower_at_the_same_time() -> None:
    workers = pool.Workers()
    lowered: list[bytes] = []
    calls = [
        threading.Thread(target=lambda: lowered.append(workers.lower(ADD.encode(), [PREPARE], LIMITS)))
        for _ in range(2)
    ]
    try:
        for call in calls:
            call.start()
        for call in calls:
            call.join()
        assert len(lowered) == 2
        assert len(workers._idle) == 1
    finally:
        workers.close()


def test_an_interrupted_request_ends_its_worker() -> None:
    workers = pool.Workers()
    workers.warm()
    pid = _pid(workers._idle[0])
    try:
        main = threading.main_thread().ident
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            threading.Timer(0.3, signal.pthread_kill, (main, signal.SIGINT)).start()
            with pytest.raises(KeyboardInterrupt):
                workers.lower(ADD.encode(), [STALL], LIMITS)
        finally:
            signal.signal(signal.SIGINT, before)
        assert not _is_alive(pid)
        assert workers.lower(ADD.encode(), [PREPARE], LIMITS)
    finally:
        workers.close()


# Processes --------------------------------------------------------------------------------------
def _python(program: str, **environment: str) -> subprocess.Popen[str]:
    paths = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": paths, **environment},
    )


_PRELUDE = f"""
import os, signal, sys, time
from mansard.frontends.mlir_worker import pool
from mansard.frontends.linalg.module import import_mlir
ADD = {ADD!r}
def worker():
    return pool._workers._idle[0]._process.pid
"""


@pytest.mark.slow  # a killed process, and one that ends by itself, are among those with a fork below
def test_a_process_that_is_killed_leaves_no_worker() -> None:
    with _python(_PRELUDE + "import_mlir(ADD)\nprint(worker(), flush=True)\ntime.sleep(600)") as process:
        pid = int(process.stdout.readline())
        process.kill()
    assert _wait_for_end(pid)


def test_a_fork_that_outlives_its_parent_keeps_no_worker() -> None:
    program = """
    import_mlir(ADD)
    print(worker(), flush=True)
    child = os.fork()
    if child:
        print(child, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(600)
    """
    with _python(_PRELUDE + textwrap.dedent(program)) as process:
        pid, child = int(process.stdout.readline()), int(process.stdout.readline())
        try:
            assert _wait_for_end(pid)
            assert _is_alive(child)
        finally:
            os.kill(child, signal.SIGKILL)


def test_parent_and_fork_import_each_with_their_own_worker_and_leave_none() -> None:
    program = """
    import_mlir(ADD)
    first = worker()
    print(first, flush=True)
    child = os.fork()
    for _ in range(3):
        import_mlir(ADD)
    if child == 0:
        pool._workers.close()
        os._exit(0)
    _, status = os.waitpid(child, 0)
    print(status, first == worker())
    """
    with _python(_PRELUDE + textwrap.dedent(program)) as process:
        pid = int(process.stdout.readline())
        assert process.stdout.read() == "0 True\n"
        assert process.wait() == 0
    assert _wait_for_end(pid)


def test_lowering_in_the_calling_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "_workers", None)
    monkeypatch.setenv("MANSARD_LOWERING", "in-process")
    assert len(import_mlir(ADD).ops) == 1
    monkeypatch.setenv("MANSARD_LOWERING", "elsewhere")
    with pytest.raises(
        ImportModelError, match="MANSARD_LOWERING='elsewhere': it must be worker or in-process"
    ):
        import_mlir(ADD)


def test_the_time_limit_is_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    assert pool.limits(500_000).cpu_seconds > pool.limits(500).cpu_seconds >= 20
    monkeypatch.setenv("MANSARD_LOWERING_TIMEOUT", "7.5")
    assert pool.limits(500_000).cpu_seconds == 7.5
    assert pool.limits(500_000, 2.0).cpu_seconds == 2.0
    for text in ("-1", "0", "soon", "nan", "inf"):
        monkeypatch.setenv("MANSARD_LOWERING_TIMEOUT", text)
        with pytest.raises(ImportModelError, match="it must be a number of seconds above 0"):
            pool.limits(1)


def test_a_worker_that_cannot_start_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "missing"))
    with pytest.raises(ImportModelError, match="MANSARD_LOWERING=in-process lowers models in the calling"):
        Worker()


def test_idle_workers_end(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = Worker()
    try:
        worker.lower(ADD.encode(), [], LIMITS)
        worker._process.send_signal(signal.SIGTERM)
        worker._process.wait()
        worker._process.returncode = 0
        with pytest.raises(WorkerIdleError):
            worker.lower(ADD.encode(), [], LIMITS)
    finally:
        worker.close()
