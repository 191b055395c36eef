"""Arm's packages in a worker process of the environment that has them, and the NPUs they know."""

from __future__ import annotations

import functools
from typing import NamedTuple

from mansard.errors import WorkerUnavailableError
from mansard.workers import Environment, Worker, interpreter, problem

PYTHON_VARIABLE = "MANSARD_ETHOS_U_PYTHON"
"""The interpreter that has Arm's packages, where this one has not."""
REQUIRES = ("ethos-u-vela==5.2.0", "tosa-tools==2026.8.0")
PROGRAMS = "mansard_ethos_u.toolchain"
PACKAGES = ("mansard_ethos_u", "mansard.regions", "mansard.regions.tosa")
COMPILE_SECONDS = 300.0


class Accelerator(NamedTuple):
    """An NPU as Vela knows it: its name, multiply-adds of a core and a cycle, cores, and Vela's configuration
    of the system around it, whose clock turns cycles into seconds."""

    name: str
    macs: int
    cores: int
    system: str
    memory: str
    clock: float


# Vela's own configuration file (config_files/Arm/vela.ini of 5.2.0) says what each system is.
_SYSTEMS = {
    "u55": ("EthosU55", (32, 64, 128, 256), "Ethos_U55_High_End_Embedded", "Shared_Sram", 500e6),
    "u65": ("EthosU65", (256, 512), "Ethos_U65_High_End", "Dedicated_Sram_384KB", 1e9),
    "u85": ("EthosU85", (128, 256, 512, 1024, 2048), "Ethos_U85_SYS_DRAM_Mid", "Shared_Sram", 1e9),
}
ACCELERATORS = {
    f"{family}-{macs}": Accelerator(
        name, *((macs, 1) if (family, macs) != ("u65", 512) else (256, 2)), system, memory, clock
    )
    for family, (name, sizes, system, memory, clock) in _SYSTEMS.items()
    for macs in sizes
}
DEFAULT = "u85-256"


def environment() -> Environment:
    """Where Arm's packages are. Raises WorkerUnavailableError."""
    python = interpreter(PYTHON_VARIABLE, "ethosu")
    if python is None:
        raise WorkerUnavailableError(
            f"Vela is not installed: pip install {' '.join(REQUIRES)} into an environment of its own, "
            f"{PYTHON_VARIABLE}=/path/to/its/python"
        )
    return Environment(python, PACKAGES, REQUIRES)


def absence() -> str | None:
    """Why Arm's packages cannot be used; None where they can, as far as their versions tell."""
    try:
        return problem(environment(), "Vela")
    except WorkerUnavailableError as error:
        return str(error)


@functools.cache
def compiler() -> Worker:
    """The worker that compiles for this process."""
    return Worker(PROGRAMS, environment(), name="Vela", seconds=COMPILE_SECONDS)
