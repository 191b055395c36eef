"""Variables: tensors and resources that keep their content from call to call."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
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
        self._states: dict[str, Value | None] = {}
        self._current: dict[str, Tensor] = {}
        self._infos: dict[str, TensorInfo] = {}
        self._initial: dict[str, Tensor] = {}
        self._initialising = False

    def held(self) -> Mapping[str, Tensor]:
        """What variables hold here."""
        return dict(self._current)

    @contextmanager
    def initialising(self) -> Iterator[None]:
        """Assignments are what variables hold before the first call."""
        self._initialising = True
        try:
            yield
        finally:
            self._initialising = False

    def state(self, g: Emitter, key: str, info: TensorInfo) -> Tensor:
        """The content of a variable tensor, zeros before the first call."""
        return self.read(g, key, info)

    def read(self, g: Emitter, name: str, info: TensorInfo) -> Tensor:
        """The content of a variable."""
        if name not in self._current:
            self._start(g, name, info)
        return self._current[name]

    def assign(self, name: str, tensor: Tensor, info: TensorInfo) -> None:
        """Give a variable new content."""
        if self._initialising:
            if tensor.content is None and tensor.constant is None:
                raise ImportModelError(f"variable {name!r} is initialised with a computed tensor")
            self._initial[name] = tensor
            return
        self._current[name] = tensor
        self._infos[name] = info
        self._states.setdefault(name, None)

    def finish(self, g: Emitter) -> None:
        """Tell the Graph what each state holds after a call."""
        for name, known in list(self._states.items()):
            after = self._current[name]
            before = known
            if before is None:  # assigned and not read before: what it held is not needed
                continue
            if after.shape != before.type.shape or after.dtype is not before.type.dtype:
                raise ImportModelError(
                    f"variable {name!r} of {before.type} is assigned {list(after.shape)} {after.dtype}"
                )
            g.builder.update_state(before, g.value(after))

    def _start(self, g: Emitter, name: str, info: TensorInfo) -> None:
        if -1 in info.signature:
            raise ImportModelError(f"variable {name!r} has a size that is not stated")
        initial = self._initial.get(name)
        constant = None
        if initial is not None:
            constant = initial.constant if initial.content is None else Constant.of(initial.content, name)
        before = g.builder.state(info.name or name, info.shape, info.dtype, constant)
        self._states[name] = before
        self._current[name] = g.tensor(before)
