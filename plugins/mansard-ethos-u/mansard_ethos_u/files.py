"""What a region is compiled to: a ZIP file with the command stream, the weights and the program in TOSA.

    command_stream.bin   what the Ethos-U core driver is given, driver actions included
    weights.bin          encoded weights and scales, read-only
    region.tosa          the flatbuffer that the commands were made of
    region.json          base pointers, where inputs and outputs lie, cycles in all, and by op: tensor,
                         Vela's operator, cycles, multiply-adds, named op and its place in the model

``python -m mansard_ethos_u.files MODEL.mansard FOLDER`` writes those of each region of a compiled model.
"""

from __future__ import annotations

import io
import json
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mansard.artifact.resources import read_artifact
from mansard.hal.program import Program

FORMAT = "ethos-u-region"
STREAM, WEIGHTS, TOSA, FACTS = "command_stream.bin", "weights.bin", "region.tosa", "region.json"


def pack(compiled: Mapping[str, Any], target: str, clock: float) -> bytes:
    """The container of what `mansard_ethos_u.toolchain.compile_program` returns."""
    files = {STREAM: compiled["command_stream"], WEIGHTS: compiled["weights"], TOSA: compiled["tosa"]}
    facts = {name: value for name, value in compiled.items() if not isinstance(value, bytes)}
    facts |= {"target": target, "clock_hz": clock}
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in {**files, FACTS: json.dumps(facts, indent=1).encode()}.items():
            archive.writestr(zipfile.ZipInfo(name), data)  # without the time of day
    return buffer.getvalue()


def unpack(code: bytes) -> tuple[dict[str, bytes], dict[str, Any]]:
    """The files of a container, and the facts. Raises ValueError for other bytes."""
    try:
        with zipfile.ZipFile(io.BytesIO(code)) as archive:
            files = {name: archive.read(name) for name in (STREAM, WEIGHTS, TOSA, FACTS)}
        return files, json.loads(files[FACTS])
    except (zipfile.BadZipFile, KeyError) as error:
        raise ValueError(f"it is no compiled region: {error}") from error


def export(model: str | Path, folder: str | Path) -> list[str]:
    """Write the files of a compiled model's regions, a folder for each; returns their names."""
    plan, resources = read_artifact(model)
    regions = [ref for device in plan.devices for ref in device.executables if ref.format == FORMAT]
    for region in regions:
        into = Path(folder, region.kernels[0][0])
        into.mkdir(parents=True, exist_ok=True)
        program = Program.decode(bytes(resources.code(region.entry)))
        for name, data in unpack(program.code)[0].items():
            (into / name).write_bytes(data)
    return [region.kernels[0][0] for region in regions]


if __name__ == "__main__":
    print("\n".join(export(*sys.argv[1:3])) or "the model has no region for an Ethos-U")
