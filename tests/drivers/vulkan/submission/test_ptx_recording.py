"""Launches of PTX kernels as the native core records them, into a table of made-up calls."""

from __future__ import annotations

import ctypes
from typing import Any

from mansard.drivers.vulkan import vk
from mansard.drivers.vulkan.submission.bridge import CALLS, CallsStruct, RecordingStruct
from mansard.drivers.vulkan.submission.command_stream import COMPUTE, WORD, CommandStream, record

TARGET = 77
_RESULTS = {"begin": 0, "end": 0}


class Calls:
    """Takes down the calls of a recording, by their members in ``mn_vk_calls``."""

    def __init__(self) -> None:
        self.made: list[tuple[str, Any]] = []
        self._kept = []
        pointers = []
        for member, name in CALLS.items():
            prototype = vk.DeviceCommands.PROTOTYPES[name]
            self._kept.append(prototype(self._taking(member)))
            pointers.append(ctypes.cast(self._kept[-1], ctypes.c_void_p))
        self.struct = CallsStruct(*pointers)

    def _taking(self, member: str) -> Any:
        def take(target: int, *arguments: Any) -> int | None:
            assert target == TARGET
            self.made.append((member, launch_of(arguments[0]) if member == "launch" else arguments))
            return _RESULTS.get(member)

        return take


def launch_of(pointer: Any) -> dict[str, Any]:
    """The members of a launch's structure, and what its parameters point to while the call is made."""
    info = pointer.contents
    members = {name: getattr(info, name) for name, *_ in info._fields_}
    members["pParams"] = [info.pParams[i] for i in range(info.paramCount)]
    members["tables"] = [bytes(ctypes.string_at(pointer, 4 * 8)) for pointer in members.pop("pParams")]
    return members


def made(stream: CommandStream) -> list[tuple[str, Any]]:
    calls = Calls()
    recording = RecordingStruct(calls=ctypes.pointer(calls.struct), target=TARGET)
    assert record(stream.finish(), recording) == 0
    return [call for call in calls.made if call[0] != "barrier"]


def test_what_a_launch_says() -> None:
    stream = CommandStream()
    stream.begin("", COMPUTE)
    stream.launch(0xF00D_0000_0001, (5, 6, 7), 384, [1 << 40, 2, -3 & WORD, 4])
    stream.end("")
    (_, (name, launched), _) = made(stream)
    assert name == "launch"
    tables = launched.pop("tables")
    assert [memoryview(table).cast("q").tolist() for table in tables] == [[1 << 40, 2, -3, 4]]
    assert (launched.pop("sType"), launched.pop("pNext")) == (vk.VkCuLaunchInfoNVX.STYPE, None)
    assert not launched.pop("pExtras")
    assert launched == {
        "function": 0xF00D_0000_0001,
        **{"gridDimX": 5, "gridDimY": 6, "gridDimZ": 7},
        **{"blockDimX": 384, "blockDimY": 1, "blockDimZ": 1},
        **{"sharedMemBytes": 0, "paramCount": 1, "extraCount": 0},
    }


def test_a_kernel_without_arguments_has_no_parameter() -> None:
    stream = CommandStream()
    stream.begin("", COMPUTE)
    stream.launch(1, (1, 1, 1), 32, [])
    stream.end("")
    assert made(stream)[1][1]["paramCount"] == 0


def test_a_pipeline_is_bound_again_after_a_launch() -> None:
    stream = CommandStream()
    stream.begin("", COMPUTE)
    for launch in (False, False, True, False):
        if launch:
            stream.launch(1, (1, 1, 1), 32, [1, 2, 3, 4])
        else:
            stream.dispatch(8, 9, (1, 1, 1), [1], False)
    stream.end("")
    calls = [name for name, _ in made(stream)]
    dispatched = ["push_constants", "dispatch"]
    assert calls == [
        "begin", "bind_pipeline", *dispatched, *dispatched, "launch", "bind_pipeline", *dispatched, "end",
    ]  # fmt: skip
