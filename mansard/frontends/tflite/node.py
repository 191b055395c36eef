"""One operator of a ``.tflite`` graph, as its rule sees it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mansard.dims import DimLike
from mansard.dtypes import DType
from mansard.errors import UnsupportedOpError
from mansard.frontends.emission.tensor import Content, Tensor
from mansard.frontends.emission.unsupported import ContentNeededError
from mansard.frontends.tflite.entries import Entry
from mansard.frontends.tflite.model import Operator, Quantisation, Subgraph, TensorInfo
from mansard.frontends.tflite.schema import ACTIVATIONS

_QUANTISED = ("INT8", "UINT8", "INT16", "INT4")


class Node:
    """An operator with its operands resolved."""

    def __init__(self, operator: Operator, subgraph: Subgraph, inputs: Sequence[Entry | None]) -> None:
        self.operator, self.subgraph, self.inputs = operator, subgraph, list(inputs)
        self.op = operator.op

    @property
    def full_name(self) -> str:
        """``tflite.CONV_2D``, or ``tflite.custom.Name``."""
        return f"tflite.{'custom.' if self.operator.custom else ''}{self.op}"

    @property
    def location(self) -> str:
        """The operator's place in the file, and the tensor it computes."""
        names = [self.subgraph.tensors[i].name for i in self.operator.outputs[:1]]
        to = f" (to {names[0]!r})" if names else ""
        return f"operator {self.operator.index} of subgraph {self.subgraph.index}{to}"

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
        if entry is not None and not isinstance(entry, Tensor):
            raise self.fail(f"operand {number} is a {type(entry).__name__.lower()}")
        return entry

    def tensors(self) -> list[Tensor]:
        """All operands, of which none is left out."""
        return [self.tensor(i) for i in range(len(self.inputs))]

    def info(self, number: int) -> TensorInfo:
        """What the file says about an operand."""
        return self.subgraph.tensors[self.operator.inputs[number]]

    def result(self, number: int = 0) -> TensorInfo:
        """What the file says about a result."""
        if number >= len(self.operator.outputs):
            raise self.fail(f"result {number} is missing")
        return self.subgraph.tensors[self.operator.outputs[number]]

    def scaled(self, number: int) -> Quantisation | None:
        """How an operand is quantised; None for plain numbers."""
        return quantisation_of(self.info(number))

    def result_scaled(self, number: int = 0) -> Quantisation | None:
        """How a result is quantised; None for plain numbers."""
        return quantisation_of(self.result(number))

    def content(self, number: int) -> Content:
        """The elements of an operand. Raises ContentNeededError where they are computed at run time."""
        tensor = self.tensor(number)
        if tensor.content is not None:
            return tensor.content
        if tensor.constant is not None:
            return tensor.constant.load()
        raise ContentNeededError(self.full_name, self.location, repr(self.info(number).name), tensor)

    def numbers(self, number: int) -> Content:
        """The elements of an operand, without symbolic dims."""
        content = self.content(number)
        if content.dtype == np.object_:
            raise self.fail(f"operand {self.info(number).name!r} depends on symbolic sizes")
        return content

    def ints(self, number: int) -> list[int]:
        """The elements of an operand, as ints."""
        flat = self.numbers(number).reshape(-1)
        if flat.dtype.kind not in "iu":
            raise self.fail(f"operand {self.info(number).name!r} gives places as {flat.dtype}")
        return [int(i) for i in flat]

    def dims(self, number: int) -> list[DimLike]:
        """The elements of an operand, as dims."""
        flat = self.content(number).reshape(-1)
        if flat.dtype.kind not in "iuO":
            raise self.fail(f"operand {self.info(number).name!r} gives sizes as {flat.dtype}")
        return [int(d) if isinstance(d, (int, np.integer)) else d for d in flat]

    def known(self, number: int) -> bool:
        """Whether the elements of an operand are known."""
        tensor = self.optional(number)
        return tensor is not None and (tensor.content is not None or tensor.constant is not None)

    def stated_shape(self, number: int = 0) -> tuple[int, ...] | None:
        """The shape that the file states for a result, where no call chooses it."""
        info = self.result(number)
        return info.shape if -1 not in info.signature else None

    # Options ----------------------------------------------------------------------------------
    def integer(self, name: str) -> int:
        """An integer option."""
        return 0 if self.operator.options is None else self.operator.options.integer(name)

    def real(self, name: str) -> float:
        """A float option."""
        return 0.0 if self.operator.options is None else self.operator.options.real(name)

    def flag(self, name: str) -> bool:
        """A bool option."""
        return self.operator.options is not None and self.operator.options.flag(name)

    def integers(self, name: str) -> list[int]:
        """An option that is a list of integers."""
        return [] if self.operator.options is None else self.operator.options.integers(name)

    @property
    def activation(self) -> str:
        """The fused activation."""
        number = self.integer("fused_activation_function")
        if not 0 <= number < len(ACTIVATIONS):
            raise self.fail(f"fused activation {number}")
        return ACTIVATIONS[number]

    # Errors -----------------------------------------------------------------------------------
    def fail(self, detail: str) -> UnsupportedOpError:
        """The error for what the rule does not support."""
        return UnsupportedOpError(self.full_name, self.location, detail)


def quantisation_of(info: TensorInfo) -> Quantisation | None:
    """How a tensor is quantised; None for floats, indices and biases."""
    q = info.quantisation
    return q if q is not None and info.kind in _QUANTISED and q.scale.any() else None


def is_quantised(dtype: DType) -> bool:
    """Whether tensors of a type may be quantised."""
    return dtype in (DType.I8, DType.U8, DType.I16)
