"""Parsers for option values: tensors, files, dynamic dims, pins, memory limits.

A tensor is ``[NAME=]SHAPExDTYPE[=VALUE]`` or ``[NAME=]@FILE.npy``: ``1x3x224x224xf32=0``,
``ids=2x4xi64=1,2,3,4,5,6,7,8``, ``f32=0.5`` (a scalar), ``8xf32=random``, ``mask=@mask.npy``,
``1x3xf32=@raw.bin`` (raw little-endian bytes). Without ``=VALUE`` it is zeros.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import typer

from mansard.arguments import size_in_bytes
from mansard.dims import Dim
from mansard.dtypes import DType
from mansard.errors import ShapeContractError

Array = npt.NDArray[np.generic]

_DTYPES = "|".join(dtype.value for dtype in DType)
_TYPE = re.compile(rf"(?P<shape>(?:\d+x)*)(?P<dtype>{_DTYPES})(?:=(?P<value>.+))?")
_DYNAMIC = re.compile(
    r"(?P<input>[^:=]+):(?P<axis>\d+)=(?:(?P<symbol>[A-Za-z_]\w*):)?(?P<min>\d+)\.\.(?P<max>\d+)(?:/(?P<multiple>\d+))?"
)
_SIZE_DIGITS = 18
"""Of one dim of a tensor: more do not fit 64 bits."""
_TRUTH = {"true": 1, "false": 0}


@dataclass(frozen=True)
class InputType:
    """``SHAPExDTYPE``."""

    shape: tuple[int, ...]
    dtype: DType

    def __str__(self) -> str:
        return "x".join([*map(str, self.shape), self.dtype.value])


@dataclass(frozen=True)
class TensorArgument:
    """One ``--input``: its name (empty: by position) and how to get its value."""

    name: str
    type: InputType | None
    """None when the file has it."""
    value: str
    """A number, a comma list, ``random``, ``@FILE``, or empty for zeros."""

    def load(self, seed: int = 0) -> Array:
        """The array; ``random`` is the same for the same seed. Raises typer.BadParameter."""
        if self.value.startswith("@"):
            return _load_file(Path(self.value[1:]), self.type)
        assert self.type is not None  # parse_tensor allows that for files only
        try:
            return _make(self.type, self.value, seed)
        except (MemoryError, ValueError) as error:
            raise typer.BadParameter(f"{self.type} cannot be made: {error}") from None


def parse_tensor(text: str) -> TensorArgument:
    """Parse one ``--input``; raises typer.BadParameter that states what was expected."""
    name, spec = "", text
    match = _TYPE.fullmatch(spec)
    if match is None and "=" in text and not text.startswith("@"):
        name, _, spec = text.partition("=")
        match = _TYPE.fullmatch(spec)
    if match is None and re.fullmatch(r"@.+", spec):
        return TensorArgument(name, None, spec)
    if match is None:
        raise typer.BadParameter(
            f"{text!r} is not [NAME=]SHAPExDTYPE[=VALUE] or [NAME=]@FILE.npy; "
            f"element types: {', '.join(dtype.value for dtype in DType)}"
        )
    sizes = [size for size in match["shape"].split("x") if size]
    if any(len(size) > _SIZE_DIGITS for size in sizes):
        raise typer.BadParameter(f"{text[:80]!r} has a size of more than {_SIZE_DIGITS} digits")
    shape = tuple(map(int, sizes))
    return TensorArgument(name, InputType(shape, DType(match["dtype"])), match["value"] or "")


def _load_file(path: Path, expected: InputType | None) -> Array:
    if expected is not None and path.suffix != ".npy":
        return _load_raw(path, expected)
    try:
        array: Array = np.load(path, allow_pickle=False)
    except Exception as error:  # the header is Python text: NumPy raises whatever its parser does
        raise typer.BadParameter(f"{path} is not a readable .npy file: {error}") from None
    if expected is not None and (array.shape != expected.shape or array.dtype != expected.dtype.numpy):
        raise typer.BadParameter(f"{path} holds {array.dtype} {array.shape}, not {expected}")
    return array


def _load_raw(path: Path, expected: InputType) -> Array:
    dtype = expected.dtype.numpy
    try:
        data = path.read_bytes()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise typer.BadParameter(f"{path} cannot be read: {reason}") from None
    wanted = math.prod(expected.shape) * dtype.itemsize
    if len(data) != wanted:
        raise typer.BadParameter(f"{path} has {len(data)} bytes; {expected} takes {wanted}")
    return np.frombuffer(bytearray(data), dtype).reshape(expected.shape)


def _make(kind: InputType, value: str, seed: int) -> Array:
    if value == "random":
        return random_array(kind, seed)
    dtype = kind.dtype.numpy
    if not value:
        return np.zeros(kind.shape, dtype)
    numbers = [_number(item.strip(), kind) for item in value.split(",")]
    count = math.prod(kind.shape)
    if len(numbers) == 1:
        return np.full(kind.shape, np.asarray(numbers[0]).astype(dtype), dtype)
    if len(numbers) != count:
        raise typer.BadParameter(f"{kind} takes {count} values, {len(numbers)} were given")
    return np.asarray(numbers).astype(dtype).reshape(kind.shape)


def _number(text: str, kind: InputType) -> float | int:
    try:
        if kind.dtype.is_float:
            return float(text)
        number = _TRUTH[text.lower()] if text.lower() in _TRUTH else int(text, 0)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a value of {kind.dtype.value}") from None
    low, high = _int_range(kind.dtype)
    if not low <= number <= high:
        raise typer.BadParameter(f"{number} does not fit {kind.dtype.value} ({low} to {high})")
    return number


def _int_range(dtype: DType) -> tuple[int, int]:
    if dtype is DType.BOOL:
        return 0, 1
    if dtype.is_signed:
        return -(2 ** (dtype.bits - 1)), 2 ** (dtype.bits - 1) - 1
    return 0, 2**dtype.bits - 1


def random_array(kind: InputType, seed: int) -> Array:
    """Standard normal floats; integers from 0 to 7, which every integer type holds; coin flips for bool."""
    generator = np.random.default_rng(seed)
    if kind.dtype.is_float:
        return generator.standard_normal(kind.shape).astype(kind.dtype.numpy)
    high = 2 if kind.dtype is DType.BOOL else 8
    return generator.integers(0, high, kind.shape).astype(kind.dtype.numpy)


@dataclass(frozen=True)
class OutputArgument:
    """One ``--output``: ``[NAME=]@FILE``; raw bytes for suffixes other than ``.npy``."""

    name: str
    path: Path

    def save(self, array: Array) -> None:
        """Write the array; raises typer.BadParameter when the file cannot be written."""
        try:
            if self.path.suffix == ".npy":
                np.save(self.path, array, allow_pickle=False)
            else:
                self.path.write_bytes(np.ascontiguousarray(array).tobytes())
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise typer.BadParameter(f"{self.path} cannot be written: {reason}") from None


def parse_output(text: str) -> OutputArgument:
    """Parse one ``--output``."""
    match = re.fullmatch(r"(?:(?P<name>[^=@]+)=)?@(?P<path>.+)", text)
    if match is None:
        raise typer.BadParameter(f"{text!r} is not [NAME=]@FILE")
    return OutputArgument(match["name"] or "", Path(match["path"]))


def parse_dynamic(texts: Sequence[str]) -> dict[str, dict[int, Dim]]:
    """Parse every ``--dynamic INPUT:AXIS=[SYMBOL:]MIN..MAX[/MULTIPLE]`` into dims by input and axis.

    Axes with the same symbol have equal sizes; without a name each axis has a symbol of its own.
    """
    result: dict[str, dict[int, Dim]] = {}
    symbols: dict[str, Dim] = {}
    for text in texts:
        match = _DYNAMIC.fullmatch(text)
        if match is None:
            raise typer.BadParameter(f"{text!r} is not INPUT:AXIS=[SYMBOL:]MIN..MAX[/MULTIPLE]")
        name = match["symbol"] or re.sub(r"\W", "_", f"{match['input']}_{match['axis']}")
        try:
            dim = Dim(name, int(match["min"]), int(match["max"]), int(match["multiple"] or 1))
        except ShapeContractError as error:
            raise typer.BadParameter(f"{text!r}: {error}") from None
        if symbols.setdefault(name, dim) != dim:
            raise typer.BadParameter(f"{text!r}: {name!r} was given another range before")
        result.setdefault(match["input"], {})[int(match["axis"])] = dim
    return result


def parse_pins(texts: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """``PATTERN=DEVICE`` options as (pattern, device); raises typer.BadParameter for another form."""
    pins = []
    for text in texts:
        pattern, separator, device = text.rpartition("=")
        if not (pattern and separator and device):
            raise typer.BadParameter(f"{text!r} is not PATTERN=DEVICE, such as 'contraction*=vulkan'")
        pins.append((pattern, device))
    return tuple(pins)


def parse_memory(texts: Sequence[str]) -> tuple[tuple[str, int], ...]:
    """``DEVICE=BYTES`` options as (device, bytes), as in ``vulkan=1.5GB`` or ``npu=512MiB``; raises
    typer.BadParameter for another form."""
    limits = []
    for text in texts:
        device, _, size = text.rpartition("=")
        count = size_in_bytes(size)
        if not device or count is None:
            raise typer.BadParameter(f"{text!r} is not DEVICE=BYTES, such as vulkan=2GB or npu=512MiB")
        limits.append((device, count))
    return tuple(limits)


def with_vulkan_abi(texts: Sequence[str], abi: str) -> list[str]:
    """Devices or targets, those of Vulkan with the dispatch ABI in their text: ``vulkan:hopper,ada`` becomes
    ``vulkan:hopper+abi=all,ada+abi=all``."""
    if abi == "bda":
        return list(texts)
    return [
        ",".join(f"{variant}+abi={abi}" for variant in re.split(r",(?![+-])", text))
        if re.split("[:+,]", text)[0] == "vulkan"
        else text
        for text in texts
    ]
