"""How the CPU driver decides on threads, without starting any."""

from __future__ import annotations

import pytest

from mansard.drivers.cpu.threads import (
    DEFAULT_SPIN_US,
    HostThreads,
    choose,
    cpu_quota,
    group_by_core,
    parse_cpu_list,
)
from mansard.errors import InputError

# Two cores with two threads each, of which the process may use three, numbered as Linux likes to.
SMT = HostThreads(((0, 2), (1,)))


def test_defaults() -> None:
    chosen = choose(SMT, {})
    assert (chosen.threads, chosen.cpus, chosen.spin_us) == (2, None, DEFAULT_SPIN_US)


@pytest.mark.parametrize(("quota", "threads"), [(None, 8), (8.0, 8), (3.7, 3), (0.5, 1), (100.0, 8)])
def test_a_quota_limits_the_default(quota: float | None, threads: int) -> None:
    host = HostThreads(tuple((cpu,) for cpu in range(8)), quota)
    assert choose(host, {}).threads == threads
    assert choose(host, {"MANSARD_NUM_THREADS": "8"}).threads == 8


def test_the_environment_and_arguments_before_it() -> None:
    environment = {"MANSARD_NUM_THREADS": "3", "MANSARD_CPU_PIN": "cores", "MANSARD_CPU_SPIN_US": "0"}
    chosen = choose(SMT, environment)
    assert (chosen.threads, chosen.cpus, chosen.spin_us) == (3, (0, 1, 2), 0)
    chosen = choose(SMT, environment, threads=1, pin="none", spin_us=7)
    assert (chosen.threads, chosen.cpus, chosen.spin_us) == (1, None, 7)
    assert choose(SMT, {"MANSARD_NUM_THREADS": "", "MANSARD_CPU_PIN": ""}) == choose(SMT, {})


def test_cores_come_before_their_second_threads() -> None:
    assert choose(SMT, {}, pin="cores").cpus == (0, 1)
    assert choose(SMT, {}, pin="cores", threads=3).cpus == (0, 1, 2)


def test_a_list_of_cpus_is_a_number_of_threads() -> None:
    assert choose(SMT, {"MANSARD_CPU_PIN": "2,0-1"}).cpus == (2, 0, 1)
    assert choose(SMT, {}, pin=[1]).threads == 1
    assert choose(SMT, {}, pin=[1, 2], threads=1).cpus == (1,)


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"MANSARD_NUM_THREADS": "two"}, "MANSARD_NUM_THREADS is two; it must be a number from 1 to 4096"),
        ({"MANSARD_NUM_THREADS": "0"}, "MANSARD_NUM_THREADS is 0; it must be a number from 1 to 4096"),
        ({"MANSARD_CPU_SPIN_US": "-1"}, "MANSARD_CPU_SPIN_US is -1; it must be a number from 0 to 1000000"),
        ({"MANSARD_CPU_SPIN_US": "1ms"}, "MANSARD_CPU_SPIN_US is 1ms; "),
        ({"MANSARD_CPU_PIN": "all"}, "MANSARD_CPU_PIN is 'all'; it must be none, cores, or CPUs such as"),
        ({"MANSARD_CPU_PIN": "3-1"}, "MANSARD_CPU_PIN is '3-1'"),
        ({"MANSARD_CPU_PIN": "0,7"}, "names CPU 7, which must be one of those this process may use: 0, 1, 2"),
        ({"MANSARD_CPU_PIN": "1,1"}, "names a CPU twice"),
        ({"MANSARD_CPU_PIN": "0", "MANSARD_NUM_THREADS": "2"}, "MANSARD_CPU_PIN names 1 CPUs for 2 threads"),
        ({"MANSARD_CPU_PIN": "cores", "MANSARD_NUM_THREADS": "4"}, "MANSARD_CPU_PIN names 3 CPUs for 4"),
    ],
)
def test_wrong_settings(environment: dict[str, str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        choose(SMT, environment)


def test_wrong_arguments() -> None:
    for arguments, message in [
        ({"threads": 0}, "threads is 0"),
        ({"spin_us": 2_000_000}, "spin_us is 2000000"),
        ({"pin": []}, "pin names no CPU"),
        ({"pin": ["a"]}, "pin is"),
    ]:
        with pytest.raises(InputError, match=message):
            choose(SMT, {}, **arguments)  # type: ignore[arg-type]


def test_lists_of_cpus() -> None:
    assert parse_cpu_list("0-2,8\n") == [0, 1, 2, 8]
    for wrong in ("", "a", "1-", "-1", "2-1", "1,,2"):
        with pytest.raises(ValueError):
            parse_cpu_list(wrong)


def test_cores_from_sysfs() -> None:
    files = {
        "/sys/devices/system/cpu/cpu0/topology/thread_siblings_list": "0,4\n",
        "/sys/devices/system/cpu/cpu4/topology/thread_siblings_list": "0,4\n",
        "/sys/devices/system/cpu/cpu1/topology/thread_siblings_list": "1,5\n",
    }
    assert group_by_core([4, 1, 0, 9], files.get) == ((0, 4), (1,), (9,))


def test_quotas_of_control_groups() -> None:
    second = {
        "/proc/self/cgroup": "0::/a/b\n",
        "/sys/fs/cgroup/a/cpu.max": "250000 100000\n",
        "/sys/fs/cgroup/a/b/cpu.max": "max 100000\n",
    }
    assert cpu_quota(second.get) == 2.5
    first = {
        "/proc/self/cgroup": "4:memory:/x\n3:cpu,cpuacct:/x\n0::/\n",
        "/sys/fs/cgroup/cpu/x/cpu.cfs_quota_us": "150000\n",
        "/sys/fs/cgroup/cpu/x/cpu.cfs_period_us": "100000\n",
        "/sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
        "/sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
    }
    assert cpu_quota(first.get) == 1.5
    assert cpu_quota({}.get) is None
