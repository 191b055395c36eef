"""How many threads compute, and where: decided by pure functions over what Linux says (docs/threads.md)."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mansard.errors import InputError
from mansard.hal import core_abi

THREADS_VARIABLE = "MANSARD_NUM_THREADS"
PIN_VARIABLE = "MANSARD_CPU_PIN"
SPIN_VARIABLE = "MANSARD_CPU_SPIN_US"

SETTINGS = ("threads", "pin", "spin_us")

MAX_THREADS = 4096
DEFAULT_SPIN_US = 200
MAX_SPIN_US = 1_000_000


@dataclass(frozen=True)
class HostThreads:
    """What this process may use: CPUs by core (lists of siblings), and CPUs' worth of time (None: all)."""

    cores: tuple[tuple[int, ...], ...]
    quota: float | None = None

    @property
    def default_threads(self) -> int:
        """One thread a core, but no more than the quota can run at once."""
        cores = max(1, len(self.cores))
        return cores if self.quota is None else max(1, min(cores, int(self.quota)))

    def spread(self) -> list[int]:
        """The CPUs in the order threads take them: one of each core, then the second of each, and so on."""
        depth = max(map(len, self.cores), default=0)
        return [core[level] for level in range(depth) for core in self.cores if level < len(core)]


@dataclass(frozen=True)
class ThreadSettings:
    """How many threads compute, on which CPUs (None: any), and how long an idle one looks for work."""

    threads: int
    cpus: tuple[int, ...] | None = None
    spin_us: int = DEFAULT_SPIN_US

    def native_options(self) -> core_abi.CpuOptionsStruct:
        """The ``mn_cpu_options``; keeps its array alive."""
        cpus = (ctypes.c_int * len(self.cpus))(*self.cpus) if self.cpus else None
        return core_abi.CpuOptionsStruct(threads=self.threads, cpus=cpus, spin_ns=self.spin_us * 1000)


def choose(
    host: HostThreads,
    environment: Mapping[str, str],
    *,
    threads: int | None = None,
    pin: str | Sequence[int] | None = None,
    spin_us: int | None = None,
) -> ThreadSettings:
    """What was asked for, by argument or else by environment variable, or else the defaults.

    Raises InputError naming the argument or variable that is wrong, and what would be right.
    """
    where = {name: name for name in SETTINGS}
    if threads is None and (text := environment.get(THREADS_VARIABLE)):
        threads, where["threads"] = _number(THREADS_VARIABLE, text, 1, MAX_THREADS), THREADS_VARIABLE
    if spin_us is None and (text := environment.get(SPIN_VARIABLE)):
        spin_us, where["spin_us"] = _number(SPIN_VARIABLE, text, 0, MAX_SPIN_US), SPIN_VARIABLE
    if pin is None and (text := environment.get(PIN_VARIABLE)):
        pin, where["pin"] = text, PIN_VARIABLE
    if threads is not None:
        _check_range(where["threads"], threads, 1, MAX_THREADS)
    if spin_us is not None:
        _check_range(where["spin_us"], spin_us, 0, MAX_SPIN_US)
    cpus = _cpus(host, where["pin"], "none" if pin is None else pin)
    if threads is None:
        listed = cpus is not None and pin != "cores"
        threads = len(cpus) if listed and cpus is not None else host.default_threads
    if cpus is not None:
        if threads > len(cpus):
            raise InputError(
                f"{where['pin']} names {len(cpus)} CPUs for {threads} threads: one CPU a thread is needed"
            )
        cpus = cpus[:threads]
    return ThreadSettings(threads, cpus, DEFAULT_SPIN_US if spin_us is None else spin_us)


def _cpus(host: HostThreads, where: str, pin: str | Sequence[int]) -> tuple[int, ...] | None:
    if pin == "none":
        return None
    usable = host.spread()
    if pin == "cores":
        return tuple(usable)
    try:
        cpus = tuple(parse_cpu_list(pin)) if isinstance(pin, str) else tuple(int(cpu) for cpu in pin)
    except (TypeError, ValueError):
        raise InputError(f"{where} is {pin!r}; it must be none, cores, or CPUs such as 0,2,4-7") from None
    absent = [cpu for cpu in cpus if cpu not in usable]
    if absent or not cpus:
        wrong = f"CPU {absent[0]}, which" if absent else "no CPU; it"
        raise InputError(
            f"{where} names {wrong} must be one of those this process may use: {_ranges(usable)}"
        )
    if len(set(cpus)) < len(cpus):
        raise InputError(f"{where} names a CPU twice: {_ranges(cpus)}")
    return cpus


def _number(where: str, text: str, low: int, high: int) -> int:
    try:
        return int(text)
    except ValueError:
        raise InputError(f"{where} is {text[:40]}; it must be a number from {low} to {high}") from None


def _check_range(where: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise InputError(f"{where} is {value}; it must be a number from {low} to {high}")


def _ranges(cpus: Sequence[int]) -> str:
    return ", ".join(map(str, sorted(cpus)))


# ---- what Linux says -----------------------------------------------------------------------------

Read = Callable[[str], str | None]
"""The text of a file; None when there is none."""


def parse_cpu_list(text: str) -> list[int]:
    """CPUs of Linux's list format, ``0-3,8``; ValueError for anything else."""
    cpus: list[int] = []
    for part in text.strip().split(","):
        first, dash, last = part.partition("-")
        low, high = int(first), int(last if dash else first)
        if not 0 <= low <= high < 1 << 20:
            raise ValueError(part)
        cpus += range(low, high + 1)
    return cpus


def group_by_core(allowed: Sequence[int], read: Read) -> tuple[tuple[int, ...], ...]:
    """The allowed CPUs by physical core, from each CPU's ``topology/thread_siblings_list``."""
    cores: dict[tuple[int, ...], list[int]] = {}
    for cpu in sorted(allowed):
        text = read(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        siblings = tuple(parse_cpu_list(text)) if text else (cpu,)
        cores.setdefault(siblings, []).append(cpu)
    return tuple(tuple(core) for core in cores.values())


def cpu_quota(read: Read) -> float | None:
    """CPUs' worth of time the process's control groups leave it (versions 1 and 2); None: no limit."""
    limits: list[float] = []
    for line in (read("/proc/self/cgroup") or "").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            limits += _limits(path, lambda folder: _quota_v2(read(f"/sys/fs/cgroup{folder}/cpu.max")))
        elif "cpu" in controllers.split(","):
            limits += _limits(path, lambda folder: _quota_v1(read, f"/sys/fs/cgroup/cpu{folder}"))
    return min(limits, default=None)


def _limits(path: str, limit: Callable[[str], float | None]) -> list[float]:
    """The limits of a group and of those it lies in."""
    parts = [part for part in path.split("/") if part]
    folders = ["".join(f"/{part}" for part in parts[:count]) for count in range(len(parts) + 1)]
    return [value for folder in folders if (value := limit(folder)) is not None]


def _quota_v2(text: str | None) -> float | None:
    """``cpu.max``: ``<microseconds or max> <period>``."""
    fields = (text or "").split()
    return int(fields[0]) / int(fields[1]) if len(fields) == 2 and fields[0] != "max" else None


def _quota_v1(read: Read, folder: str) -> float | None:
    quota, period = read(f"{folder}/cpu.cfs_quota_us"), read(f"{folder}/cpu.cfs_period_us")
    return int(quota) / int(period) if quota and period and int(quota) > 0 else None


def host_threads() -> HostThreads:
    """What this process may use now."""
    return HostThreads(group_by_core(sorted(os.sched_getaffinity(0)), _read), cpu_quota(_read))


def _read(path: str) -> str | None:
    try:
        return Path(path).read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
