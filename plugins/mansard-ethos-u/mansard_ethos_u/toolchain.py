"""Vela, and TOSA's reference model, in the Python environment that has them: the functions of a worker.

Vela compiles in the process and has no way to fall back: what it cannot take is an exception with its words.
"""

from __future__ import annotations

import functools
import importlib.resources
from typing import Any

from ethosu import regor

from mansard.regions.tosa.tools import load, run, serialise

__all__ = ["compile_program", "load", "run", "serialise"]

_OPTIONS = """
[compiler]
output_format=Raw
cop_format=COP1
enable_db=true

[scheduler]
optimize=Performance
cpu_tensor_alignment=16
tensor_allocator=HillClimb
"""


def compile_program(
    program: dict[str, Any], accelerator: str, macs: int, cores: int, system: str, memory: str
) -> dict[str, Any]:
    """What Vela makes of a program: command stream, weights, memory, and cycles in all and by tensor.

    ``accelerator`` is ``EthosU85`` …; ``system`` and ``memory`` name a system configuration and a memory mode
    of Vela's own configuration file. Raises what Vela raises.
    """
    flatbuffer = serialise(program)
    architecture = (
        f"[architecture]\nmacs={macs}\ncores={cores}\n[vela]\n"
        f"system_config_name={system}\nmemory_mode_name={memory}\n{_configurations()}"
    )
    compiled = regor.compile(accelerator, flatbuffer, "TOSA", architecture, _OPTIONS)
    report, tables = compiled.perf_report, compiled.opt_database.tables
    perf = tables["perf"]
    columns = [perf.header.index(name) for name in ("name", "operator", "op_cycles", "mac_count")]
    rows = [[row[column] for column in columns] for row in perf.data]
    return {
        "tosa": flatbuffer,
        "command_stream": bytes(compiled.command_stream),
        "weights": bytes(compiled.read_only.data),
        "regions": {
            "weights": {"region": int(compiled.read_only.region), "bytes": len(compiled.read_only.data)},
            "scratch": _place(compiled.scratch),
            "scratch_fast": _place(compiled.scratch_fast),
        },
        "inputs": [_place(tensor) for tensor in compiled.inputs],
        "outputs": [_place(tensor) for tensor in compiled.outputs],
        "cycles": int(report.totalCycles),
        "macs": int(report.macCount),
        "encoded_weights": int(report.encodedWeights),
        "ops": [(name, kind, int(cycles), int(macs)) for name, kind, cycles, macs in rows],
    }


def _place(tensor: Any) -> dict[str, Any]:
    """Where an input or output lies: base pointer and offset."""
    numbers = {"region": tensor.region, "address": tensor.address, "bytes": tensor.size}
    return {name: int(number) for name, number in numbers.items()} | {"shape": list(map(int, tensor.shape))}


@functools.cache
def _configurations() -> str:
    return (importlib.resources.files("ethosu") / "config_files" / "Arm" / "vela.ini").read_text()
