"""Variables: tensors and resources that keep their content from call to call."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mansard.errors import ImportModelError
from mansard.frontends.emission.tensor import Tensor
from mansard.frontends.tflite.model import TensorInfo
from mansard.ir.types import Constant, Value

if TYPE_CHECKING:
    from mansard.frontends.emission.emitter import Emitter


class Variables:
    """The states of a Graph under construction, and what they hold at a point of it."""

    def __init__(self) -> None:
        self._states: dict[str, Value] = {}
        self._current: dict[str, Tensor] = {}
        self.initial: dict[str, Tensor] = {}
        """What initialisation assigns to variables, by name."""

    def state(self, g: Emitter, key: str, info: TensorInfo) -> Tensor:
        """The content of a variable tensor, zeros before the first call."""
        if key not in self._current:
            self._start(g, key, info.name, info, None)
        return self._current[key]

    def read(self, g: Emitter, name: str, info: TensorInfo) -> Tensor:
        """The content of a resource variable."""
        if name not in self._current:
            start = self.initial.get(name)
            constant = None
            if start is not None:
                content = start.content
                constant = start.constant if content is None else Constant.of(content, name)
            self._start(g, name, name, info, constant)
        return self._current[name]

    def assign(self, key: str, tensor: Tensor) -> None:
        """Give a variable new content."""
        self._current[key] = tensor

    def finish(self, g: Emitter) -> None:
        """Tell the Graph what each state holds after a call."""
        for key, before in self._states.items():
            after = self._current[key]
            if after.shape != before.type.shape or after.dtype is not before.type.dtype:
                raise ImportModelError(
                    f"variable {key!r} of {before.type} is assigned {list(after.shape)} {after.dtype}"
                )
            g.builder.update_state(before, g.value(after))

    def _start(self, g: Emitter, key: str, name: str, info: TensorInfo, initial: Constant | None) -> None:
        if -1 in info.signature:
            raise ImportModelError(f"variable {name!r} has a size that is not stated")
        before = g.builder.state(name, info.shape, info.dtype, initial)
        self._states[key] = before
        self._current[key] = g.tensor(before)
