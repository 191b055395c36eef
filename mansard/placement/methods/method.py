"""A method of a model to be placed, and what is kept on devices for it as long as the model is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from mansard import dims
from mansard.ir.dispatch import DispatchGraph
from mansard.ir.types import Value


@dataclass(frozen=True)
class MethodUse:
    """How a method is used: ``calls`` of it for each typical use of the model, which weigh its latency, and
    the ``device`` that it should run on wherever that is able to (None: the best). A method without calls is
    placed ``like`` another; by default like the first that has some."""

    calls: float = 0.0
    device: str | None = None
    like: str | None = None


@dataclass(frozen=True)
class Method:
    """A method's dispatch graph, and how it is used."""

    name: str
    graph: DispatchGraph
    use: MethodUse


@dataclass
class Resident:
    """A constant or state that devices hold for all methods; ``users`` are dispatch numbers by method."""

    bytes: int
    is_state: bool
    users: dict[int, list[int]] = field(default_factory=dict)

    def span(self, sizes: Sequence[int]) -> float:
        """The largest part of a method that lies between its first and its last user; ``sizes`` are the
        numbers of dispatches of the methods."""
        return max((max(numbers) - min(numbers)) / sizes[m] for m, numbers in self.users.items())


def residents_of(methods: Sequence[Method]) -> list[Resident]:
    """What the methods hold: constants of equal content and states of equal name are one."""
    held: dict[object, Resident] = {}
    for number, method in enumerate(methods):
        graph = method.graph
        state_of: dict[Value, Value] = {}
        for each in graph.graph.states:
            state_of[each.before] = state_of[graph.base(each.after)] = each.before
        for n, dispatch in enumerate(graph.dispatches):
            for value in (*dispatch.inputs, *dispatch.outputs):
                for source in graph.sources(value):
                    constant, state = graph.graph.constants.get(source), state_of.get(source)
                    content: tuple[object, ...]
                    if constant is not None:
                        content = (constant.key, source.type) if constant.key else (number, source)
                    elif state is not None:
                        content = ("state", state.name)
                    else:
                        continue
                    size = dims.representative((state or source).type.bytes)
                    resident = held.setdefault(content, Resident(size, constant is None))
                    users = resident.users.setdefault(number, [])
                    if not users or users[-1] != n:
                        users.append(n)
    return list(held.values())
