"""The runtime half: tiles that are written when a model is loaded, and a thread that multiplies."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from mansard.errors import DeviceUnavailableError, OutOfMemoryError, TargetMismatchError
from mansard.hal import Device, DeviceInfo, DispatchCommand, Driver, Executable, ExecutableSpec
from mansard.hal.threaded import Bytes, ThreadedDevice
from mansard_crossbar.model import Model, model
from mansard_crossbar.program import FORMAT, Product, decode
from mansard_crossbar.tiles import Weight, multiply

Function = Callable[[Sequence[Bytes], Sequence[int]], None]
FUNCTIONS: dict[str, Function] = {}
"""What the digital part of the chip can do beside products."""


@dataclass(frozen=True)
class Usage:
    """What a device has done: ``joules`` count converters, cells and the writing of tiles."""

    tiles: int
    written: int
    vectors: int
    joules: float


class Loaded(Executable):
    """A program; its tiles are its own until it is closed."""

    def __init__(self, device: CrossbarDevice, spec: ExecutableSpec, code: bytes | memoryview) -> None:
        header, self.product, self.weight = decode(code)
        self.function = FUNCTIONS[header["function"]] if self.product is None else None
        self.parameters = header.get("parameters", ())
        self.spec, self.device, self.tiles = spec, device, 0
        self.entries = MappingProxyType({entry.name: entry for entry in spec.entries})

    def close(self) -> None:
        """Free the tiles."""
        self.device.free(self)


class CrossbarDevice(ThreadedDevice):
    """The simulated crossbar. See `mansard_crossbar` on what it is."""

    def __init__(self, info: DeviceInfo, chip: Model) -> None:
        self.chip, self._tiles = chip, threading.Lock()
        self._written = self._vectors = 0
        self._joules = 0.0
        self.occupied = 0
        super().__init__(info, formats=(FORMAT,))

    def load(self, spec: ExecutableSpec) -> Executable:
        """Write a program's weight into free tiles; OutOfMemoryError if there are too few of them."""
        if spec.format != FORMAT or spec.requires:
            needs = "".join(f" with {name}" for name in spec.requires)
            raise TargetMismatchError(f"the simulated crossbar loads {FORMAT!r}, not {spec.format!r}{needs}")
        try:
            loaded = Loaded(self, spec, spec.code)
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise TargetMismatchError(f"this is no program of the simulated crossbar: {error}") from error
        tiles = 0 if loaded.weight is None else self.chip.tiles_of(*loaded.weight.codes.shape)
        with self._tiles:
            free = self.chip.tiles - self.occupied
            if tiles > free:
                raise OutOfMemoryError(
                    f"{self.info.id}: a weight takes {tiles} tiles, and {free} of {self.chip.tiles} are free"
                )
            loaded.tiles = tiles
            self.occupied += tiles
            self._written += tiles
            self._joules += tiles * self.chip.joules["program"]
        return loaded

    def free(self, loaded: Loaded) -> None:
        """Give the tiles of a program back; more than once is allowed."""
        with self._tiles:
            self.occupied -= loaded.tiles
            loaded.tiles = 0

    def run(self, command: DispatchCommand, memories: Sequence[Bytes]) -> None:
        """One product, vector by vector, or a function."""
        loaded = command.executable
        assert isinstance(loaded, Loaded)
        if loaded.product is None or loaded.weight is None:
            assert loaded.function is not None
            loaded.function(memories, command.params)
            return
        sizes = dict(zip(loaded.parameters, command.params, strict=True))
        self._product(loaded.product, loaded.weight, memories, sizes)

    def _product(
        self, product: Product, weight: Weight, memories: Sequence[Bytes], sizes: dict[str, int]
    ) -> None:
        op, side = product.op, 1 - product.weight
        data, result = (
            memory[: int(np.prod(shape, dtype=np.int64)) * 4].view(np.float32).reshape(shape)
            for memory, value in zip(memories, (op.inputs[side], op.output), strict=True)
            for shape in (value.type.concrete(sizes),)
        )
        order = (*product.vectors, *op.reduced)
        vectors = product.elements(data, side, order, sizes).reshape(-1, len(weight.codes))
        outputs = multiply(vectors, weight, self.chip)
        axes = (*product.vectors, *product.outputs)
        shape = [result.shape[d] for d in axes]
        result[...] = outputs.reshape(shape).transpose([axes.index(d) for d in range(op.rank)])
        with self._tiles:
            self._vectors += len(vectors)
            self._joules += self.chip.energy(len(vectors), *weight.codes.shape)

    def usage(self) -> Usage:
        """Tiles in use, and what was done since the device was opened."""
        with self._tiles:
            return Usage(self.occupied, self._written, self._vectors, self._joules)


class CrossbarDriver(Driver):
    """One simulated device, ``crossbar``."""

    name = "crossbar"

    def devices(self) -> Sequence[DeviceInfo]:
        """The simulated chip."""
        return (DeviceInfo(self.name, 0, f"{model().name} (a simulation)", self.name, kind="simulated"),)

    def open(self, info: DeviceInfo) -> Device:
        """A device of its own for every call."""
        if info.driver != self.name or info.index:
            raise DeviceUnavailableError(f"{info.id} is no simulated crossbar")
        return CrossbarDevice(info, model())


DRIVER = CrossbarDriver()
