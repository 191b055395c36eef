"""What is known of a graph's values at import: numbers and small tensors that follow from constants alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

aten = torch.ops.aten
_LARGEST = 4096
"""Elements of a tensor that is computed here."""
_AND = frozenset({"logical_and", "bitwise_and", "__and__"})
_OR = frozenset({"logical_or", "bitwise_or", "__or__"})


class UnknownError(Exception):
    """The value depends on an input of the model."""


class KnownValues:
    """Evaluates nodes whose operands are known, each once; ``constants`` are placeholders' tensors."""

    def __init__(self, constants: Mapping[Any, torch.Tensor]) -> None:
        self._values: dict[Any, Any] = {n: t for n, t in constants.items() if t.numel() <= _LARGEST}

    def truth(self, value: Any) -> bool | None:
        """A condition's truth, or None where it is not known."""
        try:
            return bool(self.of(value))
        except UnknownError:
            return None

    def assume(self, node: Any, value: Any) -> None:
        """Take a node for a known value: a loop's variable while the loop goes on."""
        self._values[node] = value

    def forget(self, node: Any) -> None:
        """Take an assumption back."""
        self._values[node] = UnknownError()

    def of(self, value: Any) -> Any:
        """The value of a node, or the number itself. Raises UnknownError."""
        if not isinstance(value, torch.fx.Node):
            return value
        stack = [value]  # not by recursion: loops become long chains
        while stack:
            node = stack[-1]
            missing = [n for n in node.all_input_nodes if n not in self._values]
            if node in self._values or not missing:
                stack.pop()
                self._values.setdefault(node, self._computed(node) if node not in self._values else None)
            else:
                stack.extend(missing)
        result = self._values[value]
        if isinstance(result, UnknownError):
            raise result
        return result

    def _computed(self, node: Any) -> Any:
        operands = [self._values[n] for n in node.all_input_nodes]
        if any(isinstance(v, UnknownError) for v in operands):
            return self._decided(node)
        if node.op != "call_function" or not _is_small(node) or _is_random(node):
            return UnknownError()
        args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), self._values.__getitem__)
        try:
            with torch.no_grad():
                return node.target(*args, **kwargs)
        except Exception:
            return UnknownError()

    def _decided(self, node: Any) -> Any:
        """``and`` and ``or`` of conditions, one of which decides."""
        name = str(getattr(getattr(node.target, "overloadpacket", node.target), "__name__", ""))
        deciding = False if name in _AND or name == "and_" else True if name in _OR or name == "or_" else None
        for operand in node.all_input_nodes:
            value = self._values[operand]
            if deciding is None or isinstance(value, UnknownError):
                continue
            if isinstance(value, torch.Tensor) and value.dtype is torch.bool and value.numel() == 1:
                value = bool(value)
            if value is deciding:
                return torch.tensor(deciding)
        return UnknownError()


def _is_small(node: Any) -> bool:
    value = node.meta.get("val")
    sizes = value.shape if isinstance(value, torch.Tensor) else ()
    count = 1
    for size in sizes:
        if not isinstance(size, int):
            return False
        count *= size
    return count <= _LARGEST


def _is_random(node: Any) -> bool:
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())
