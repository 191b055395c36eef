"""What `mansard.compile(..., quantize=...)` asks for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from mansard.dtypes import DType
from mansard.errors import CompileError

STORED = "stored"
"""The kind of weights that stay as the model has them."""
KINDS = ("int8", "int4", "float12", STORED)
DEFAULT_GROUP = {"int8": None, "int4": 32, "float12": None}
MIN_GROUP = 16
"""Groups of fewer elements have scales that take a noticeable part of the memory."""


@dataclass(frozen=True)
class Quantisation:
    """How weights are stored: `mansard.quantize` makes one."""

    kind: str
    """``int8``, ``int4``, ``float12`` (`mansard.ir.float12`), or `STORED`."""
    group_size: int | None = None
    """Elements of a row that share a scale; None: whole rows."""
    symmetric: bool = True
    """False: codes have zero points."""
    activations: str | None = None
    """``int8``: what weights are multiplied with is rounded to 8 bits too, in the same groups."""
    min_elements: int = 1 << 14
    """Smaller weights stay as they are."""
    tables: bool = False
    """Whether tables that are only looked up (embeddings not tied to a product) are stored so too."""
    keep: tuple[str, ...] = ()
    """Patterns of the keys of weights that stay as they are (``*lm_head*``)."""

    @property
    def bits(self) -> int:
        """Bits of a weight."""
        return {"int8": 8, "int4": 4, "float12": 12}[self.kind]

    @property
    def scale(self) -> DType:
        """The type of the scales: f32 for whole rows, where they are few, else bf16."""
        return DType.F32 if self.group_size is None else DType.BF16

    def group(self, depth: int) -> int:
        """Elements of a group in rows of ``depth``: the size asked for, or a part of it that divides the row;
        if that is too small, the size asked for, of which the last group is padded."""
        if self.group_size is None or self.group_size >= depth:
            return depth
        common = math.gcd(self.group_size, depth)
        return common if common >= min(MIN_GROUP, self.group_size) else self.group_size

    def takes(self, key: str, elements: int) -> bool:
        """Whether a weight with a key and so many elements is stored so, if its readers allow it."""
        return elements >= self.min_elements and not any(fnmatchcase(key, pattern) for pattern in self.keep)

    @property
    def stacks(self) -> bool:
        """Whether stacks of matrices that computed indices choose from are stored so too."""
        return self.kind in ("int8", "int4")

    def stack_bytes(self, shape: Sequence[int]) -> int:
        """Bytes of such a stack (…, N, K)."""
        *rows, depth = shape
        group = self.group(depth)
        groups = -(-depth // group)
        factors = self.scale.itemsize + (0 if self.symmetric else 1)
        return math.prod(rows) * (groups * group * self.bits // 8 + groups * factors)

    def __str__(self) -> str:
        if self.kind == "float12":
            return self.kind
        if self.kind == STORED:
            return f"integers as stored, activations {self.activations}"
        group = "rows" if self.group_size is None else f"groups of {self.group_size}"
        more = "" if self.symmetric else ", zero points"
        return (
            f"{self.kind} in {group}{more}{f', activations {self.activations}' if self.activations else ''}"
        )


def quantisation(
    kind: str,
    *,
    group_size: int | None = None,
    symmetric: bool = True,
    activations: str | None = None,
    min_elements: int = 1 << 14,
    tables: bool = False,
    keep: tuple[str, ...] = (),
) -> Quantisation:
    """A checked `Quantisation`. ``group_size`` None is 32 for int4 and whole rows for int8; 0 is whole rows.

    Raises CompileError for values out of range, with those that may be.
    """
    if kind not in KINDS:
        raise CompileError(
            f"quantize {kind!r}: it may be {', '.join(map(repr, KINDS[:-1]))} or {KINDS[-1]!r}"
        )
    if kind == "float12" and (group_size or not symmetric or activations is not None):
        raise CompileError(
            "group_size, symmetric and activations are for weights of integers, not for float12"
        )
    if kind == STORED and (group_size or not symmetric or activations is None or tables or keep):
        raise CompileError(
            "'stored' leaves all weights as they are, and rounds what those of small integers are multiplied "
            "with: it takes activations='int8' and nothing else"
        )
    if group_size is None:
        group_size = DEFAULT_GROUP.get(kind)
    elif not isinstance(group_size, int) or isinstance(group_size, bool) or group_size < 0 or group_size % 4:
        raise CompileError(f"group_size {group_size!r}: it may be a multiple of 4, or 0 for whole rows")
    if activations not in (None, "int8"):
        raise CompileError(f"activations {activations!r}: it may be 'int8' or None")
    if not isinstance(min_elements, int) or min_elements < 1:
        raise CompileError(f"min_elements {min_elements!r}: it may be a number of at least 1")
    return Quantisation(
        kind, group_size or None, bool(symmetric), activations, min_elements, bool(tables), tuple(keep)
    )


def checked_quantisation(value: object) -> Quantisation | None:
    """The argument ``quantize``: None, a kind or a `Quantisation`. Raises CompileError for others."""
    if value is None or isinstance(value, Quantisation):
        return value
    if isinstance(value, str):
        return quantisation(value)
    raise CompileError(
        f"quantize may be 'int8', 'int4', 'float12' or what mansard.quantize returns, not {value!r}"
    )
