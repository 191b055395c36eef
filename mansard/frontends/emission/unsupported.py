"""What a frontend says of ops that it cannot import: all of them at once, and what would let them in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mansard.errors import UnsupportedOpError
from mansard.frontends.emission.tensor import Tensor
from mansard.ir.ops import Op
from mansard.ir.types import Value


class ContentNeededError(UnsupportedOpError):
    """A node's form depends on the content of a tensor that is only known at run time.

    ``inputs`` are the inputs of the model that have it: with these as constants the model can be imported.
    """

    def __init__(
        self,
        op: str,
        location: str,
        what: str,
        tensor: Tensor | None,
        inputs: Sequence[str] = (),
        also: str = "",
    ) -> None:
        self.what, self.tensor, self.inputs = what, tensor, tuple(inputs)
        given = ", ".join(f"{name!r}: …" for name in inputs)
        hint = f"; constants={{{given}}} fixes it" if inputs else ""
        super().__init__(
            op, location, f"the content of {what} must be known when the model is compiled{hint}{also}"
        )

    def with_origins(self, producers: Mapping[Value, Op], origins: Mapping[Value, str]) -> ContentNeededError:
        """The error with the model's inputs that the tensor in question is computed from; ``origins`` are
        their names."""
        names = [] if self.tensor is None else input_names(self.tensor, producers, origins)
        return ContentNeededError(self.op, self.location, self.what, self.tensor, names)


def input_names(tensor: Tensor, producers: Mapping[Value, Op], origins: Mapping[Value, str]) -> list[str]:
    """The inputs of the model that a tensor is computed from, sorted."""
    seen: set[Value] = set()
    stack, names = [tensor.value] if tensor.value is not None else [], set[str]()
    while stack:
        value = stack.pop()
        if value in seen:
            continue
        seen.add(value)
        if value in origins:
            names.add(origins[value])
        producer = producers.get(value)
        stack.extend(producer.inputs if producer is not None else ())
    return sorted(names)


def joined(problems: Sequence[UnsupportedOpError]) -> UnsupportedOpError:
    """One error that names everything that is not supported, each once, with the first one's op and place."""
    first, *rest = {str(problem): problem for problem in problems}.values()
    if not rest:
        return first
    named = "; ".join(f"{p.op}{f' at {p.location}' if p.location else ''}: {p.detail}" for p in rest)
    error = UnsupportedOpError(first.op, first.location, f"{first.detail}; also {named}")
    error.others = tuple(rest)
    return error
