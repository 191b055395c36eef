"""One node of an ONNX graph, as its rule sees it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx

from mansard.dims import DimLike
from mansard.errors import UnsupportedOpError
from mansard.frontends.emission.tensor import Content, Tensor
from mansard.frontends.emission.unsupported import ContentNeededError
from mansard.frontends.onnx.entries import Absent, Entry, Unsupported
from mansard.frontends.onnx.entries import Sequence as TensorSequence


class Node:
    """A node with its operands resolved; ``version`` is that of the op's schema."""

    def __init__(self, proto: Any, version: int, inputs: Sequence[Entry | None]) -> None:
        self.proto, self.version, self.inputs = proto, version, list(inputs)
        self.op: str = proto.op_type
        self.outputs: list[str] = list(proto.output)
        self._attributes = {a.name: a for a in proto.attribute}

    @property
    def full_name(self) -> str:
        """``onnx.Add``, or ``com.microsoft.Gelu``."""
        domain = self.proto.domain
        return f"{'onnx' if domain in ('', 'ai.onnx') else domain}.{self.op}"

    @property
    def location(self) -> str:
        """The node's name, or its first result."""
        if self.proto.name:
            return f"node {self.proto.name!r}"
        return f"the node of {next((o for o in self.outputs if o), '')!r}"

    # Operands ---------------------------------------------------------------------------------
    def tensor(self, number: int) -> Tensor:
        """An operand that has to be a tensor."""
        tensor = self.optional(number)
        if tensor is None:
            raise self.fail(f"operand {number} is missing")
        return tensor

    def optional(self, number: int) -> Tensor | None:
        """An operand that may be left out."""
        entry = self.inputs[number] if number < len(self.inputs) else None
        if entry is None or isinstance(entry, Absent):
            return None
        if isinstance(entry, TensorSequence):
            raise self.fail(f"operand {number} is a sequence")
        assert not isinstance(entry, Unsupported)
        return entry

    def tensors(self) -> list[Tensor]:
        """All operands, of which none is left out."""
        return [self.tensor(i) for i in range(len(self.inputs))]

    def sequence(self, number: int) -> TensorSequence:
        """An operand that has to be a sequence."""
        entry = self.inputs[number] if number < len(self.inputs) else None
        if not isinstance(entry, TensorSequence):
            raise self.fail(f"operand {number} is not a sequence")
        return entry

    def content(self, number: int) -> Content:
        """The elements of an operand. Raises ContentNeededError where they are computed at run time."""
        tensor = self.tensor(number)
        if tensor.content is not None:
            return tensor.content
        if tensor.constant is not None:
            return tensor.constant.load()
        raise ContentNeededError(self.full_name, self.location, repr(self.proto.input[number]), tensor)

    def numbers(self, number: int) -> Content:
        """The elements of an operand, without symbolic dims."""
        content = self.content(number)
        if content.dtype == np.object_:
            raise self.fail(f"operand {self.proto.input[number]!r} depends on symbolic sizes")
        return content

    def int_list(self, number: int) -> list[int] | None:
        """The elements of an operand that may be left out, as ints."""
        if self.optional(number) is None:
            return None
        return [int(i) for i in self.numbers(number).reshape(-1)]

    def dim_list(self, number: int) -> list[DimLike]:
        """The elements of an operand, as dims."""
        flat = self.content(number).reshape(-1)
        return [int(d) if isinstance(d, (int, np.integer)) else d for d in flat]

    # Attributes -------------------------------------------------------------------------------
    def has(self, name: str) -> bool:
        """Whether an attribute is stated."""
        return name in self._attributes

    def attribute(self, name: str, default: Any = None) -> Any:
        """An attribute's value, as a Python or protocol-buffer object."""
        if name not in self._attributes:
            return default
        value = onnx.helper.get_attribute_value(self._attributes[name])
        return value.decode() if isinstance(value, bytes) else value

    def integer(self, name: str, default: int = 0) -> int:
        """An integer attribute."""
        return int(self.attribute(name, default))

    def real(self, name: str, default: float = 0.0) -> float:
        """A float attribute."""
        return float(self.attribute(name, default))

    def ints(self, name: str) -> list[int] | None:
        """A list of integers, or None."""
        value = self.attribute(name)
        return None if value is None else [int(i) for i in value]

    def text(self, name: str, default: str = "") -> str:
        """A text attribute."""
        return str(self.attribute(name, default))

    # Errors -----------------------------------------------------------------------------------
    def fail(self, detail: str) -> UnsupportedOpError:
        """The error for what the rule does not support."""
        return UnsupportedOpError(self.full_name, self.location, detail)
