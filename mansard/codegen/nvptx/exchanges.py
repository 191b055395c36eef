"""Loads and stores of exchanged values in bodies (`mansard.codegen.kernel.exchanges`).

An element that is not there yet is loaded again until it is. The first load of one is requested where the
kernel loads it, and looked at where the kernel first uses it: what lies between takes place meanwhile.
Conversions of other loads follow where they are used too: a kernel that waits for an exchanged value then has
not waited for them before, and needs fewer registers for what is still narrow.
Accesses are relaxed ones of the device's scope, which go to the L2 cache.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from mansard.codegen.kernel import Binding, Inst, KValue
from mansard.codegen.kernel.exchanges import exchanged
from mansard.codegen.kernel.ir import Block, For, If, Kernel
from mansard.codegen.llvm import text
from mansard.codegen.llvm.function import FunctionEmitter
from mansard.codegen.llvm.instructions import result_type
from mansard.codegen.nvptx.function import PtxEmitter
from mansard.codegen.nvptx.target import PtxTarget

SCOPE = "relaxed.gpu.global"
POLLS = 1 << 25
"""How often an invocation loads an element, 0.3 us apart or more, before it gives the device up for lost."""


@dataclass(frozen=True)
class _Load:
    """A load that has been requested: its first result, and how to repeat it."""

    flag: str
    """The i1 that says whether it waits."""
    first: str
    again: Callable[[], str]
    type: str
    """The LLVM type of a result."""
    is_empty: Callable[[str], str]
    """The i1 that says whether a result lacks an element."""
    result: Callable[[str], str]
    """The kernel's value of a result."""


class ExchangeEmitter(PtxEmitter):
    """Emits a kernel that waits for exchanged values where ``%polls``, an i32, says so: its bit ``n`` for
    binding ``n``."""

    def __init__(self, kernel: Kernel, target: PtxTarget, metadata: list[str]) -> None:
        super().__init__(kernel, target, metadata)
        self.exchanged = exchanged(kernel)
        """The bindings of exchanged values."""
        self._pending: dict[int, tuple[KValue, _Load]] = {}
        self._deferred: dict[int, Inst] = {}
        """Casts of such loads and of others, and choices between these and something else, which follow when
        they are used."""
        self._narrow: set[int] = set()
        """Loads of other values."""
        self._users = _users(kernel.body)
        self._current = kernel.body

    def _prepare(self) -> None:
        super()._prepare()
        self._emit_other, self._emit_inst = self._emit_inst, self._emit_exchange

    def _emit_exchange(self, f: FunctionEmitter, inst: Inst) -> None:
        if self._can_wait(inst):
            assert inst.result is not None
            self._deferred[inst.result.id] = inst
            return
        self._complete(inst.args)
        if not self._emit_access(inst):
            self._emit_other(f, inst)
            if inst.op == "load" and isinstance(inst.attrs.get("memory"), Binding):
                assert inst.result is not None
                self._narrow.add(inst.result.id)

    def _can_wait(self, inst: Inst) -> bool:
        """Whether an instruction follows where its result is used."""
        if inst.op == "cast":
            return inst.args[0].id in self._pending or inst.args[0].id in self._narrow
        return inst.op == "select" and any(
            value.id in self._deferred and self._deferred[value.id].args[0].id not in self._pending
            for value in inst.args[1:]
        )

    def _emit_access(self, inst: Inst) -> bool:
        """Emit an access to an exchanged value; False for any other instruction."""
        memory = inst.attrs.get("memory")
        if not isinstance(memory, Binding) or memory.index not in self.exchanged:
            return False
        if inst.op == "store":
            self._publish(memory, inst)
            return True
        assert inst.result is not None
        self._pending[inst.result.id] = inst.result, self._request(memory, inst)
        return True

    def _complete(self, values: Iterable[KValue]) -> None:
        """Have values that are used now. All that the block has requested are waited for together."""
        for value in values:
            inst = self._deferred.pop(value.id, None)
            if inst is not None:
                self._complete(inst.args)
                self._emit_other(self, inst)
            if value.id not in self._pending:
                continue
            ids = [n for n in self._pending if n == value.id or self._users.get(n) is self._current]
            together = [self._pending.pop(n) for n in ids]
            for (other, load), name in zip(together, self._wait([load for _, load in together]), strict=True):
                self.bind(other, load.result(name))

    def _block(self, block: Block) -> None:
        outer, self._current = self._current, block
        super()._block(block)
        left = [value for value, _ in self._pending.values()]
        left += [inst.result for inst in self._deferred.values() if inst.result is not None]
        self._complete([value for value in left if self._users.get(value.id) is block])
        self._current = outer

    def _for(self, node: For) -> None:
        self._complete_used(node)
        super()._for(node)

    def _if(self, node: If) -> None:
        self._complete_used(node)
        super()._if(node)

    def _complete_used(self, node: For | If) -> None:
        """Have what a node uses, but for what nothing else does: that is waited for within."""
        if not self._pending and not self._deferred:
            return
        used = list(_used(node))
        for value in used:  # which grows
            if value.id in self._deferred:
                used += self._deferred[value.id].args
        here = [value for value in used if self._users.get(value.id) is self._current]
        if isinstance(node, For):  # what waits for nothing is not done again in each iteration
            here += [value for value in used if value.id in self._deferred and not self._waits(value)]
        self._complete(here)

    def _waits(self, value: KValue) -> bool:
        """Whether an instruction that follows later needs a load that has been requested."""
        inst = self._deferred.get(value.id)
        return value.id in self._pending if inst is None else any(map(self._waits, inst.args))

    # Code -----------------------------------------------------------------------------------
    def _flag(self, memory: Binding) -> str:
        bit = self._hoist(("polls", memory.index, ""), f"and i32 %polls, {1 << memory.index}")
        return self._hoist(("exchanged", memory.index, ""), f"icmp ne i32 {bit}, 0")

    def _request(self, memory: Binding, inst: Inst) -> _Load:
        """The first load of what an instruction loads: one element of 16 bits, or words."""
        address, type_, bits = self.address(memory, inst.args[0]), result_type(inst), memory.dtype.bits
        size = bits * type_.lanes if inst.op == "load" else 32 * type_.lanes
        unit = min(size, 32)
        count, wanted = size // unit, text.memory_type(type_) if inst.op == "load" else text.type_name(type_)
        outputs = [f"${n}" for n in range(count)]
        vector = f"v{count}." if count > 1 else ""
        loaded = "{" + ", ".join(outputs) + "}" if count > 1 else "$0"
        struct = "{ " + ", ".join([f"i{unit}"] * count) + " }" if count > 1 else f"i{unit}"
        constraints = ",".join(["=h" if unit == 16 else "=r"] * count + ["l"])
        code = f'call {struct} asm sideeffect "ld.{SCOPE}.{vector}b{unit} {loaded}, [${count}];"'
        code += f', "{constraints}"(i64 {address}) #1'

        def parts(name: str) -> list[str]:
            if count == 1:
                return [name]
            return [self.temp(f"extractvalue {struct} {name}, {n}") for n in range(count)]

        def is_empty(name: str) -> str:
            if bits < unit:
                return self._any([self._half_empty(word) for word in parts(name)])
            return self._any([self.temp(f"icmp eq i{unit} {part}, -1") for part in parts(name)])

        def result(name: str) -> str:
            whole, held = name, f"i{unit}"
            if count > 1:
                whole, held = "poison", f"<{count} x i{unit}>"
                for lane, part in enumerate(parts(name)):
                    whole = self.temp(f"insertelement {held} {whole}, i{unit} {part}, i64 {lane}")
            return whole if held == wanted else self.temp(f"bitcast {held} {whole} to {wanted}")

        first, flag = self.temp(code), self._flag(memory)
        return _Load(flag, first, lambda: self.temp(code), struct, is_empty, result)

    def _half_empty(self, word: str) -> str:
        """Whether a half of a word is empty: 0 in its complement, where subtracting 1 from each half then
        borrows the highest bit."""
        less = self.temp(f"sub i32 {-0x00010002}, {word}")
        borrows = self.temp(f"and i32 {self.temp(f'and i32 {less}, {word}')}, {-0x7FFF8000}")
        return self.temp(f"icmp ne i32 {borrows}, 0")

    def _any(self, conditions: Sequence[str]) -> str:
        return functools.reduce(lambda x, y: self.temp(f"or i1 {x}, {y}"), conditions)

    def _wait(self, loads: Sequence[_Load]) -> list[str]:
        """Load all of them again until no element of those that wait is missing; the last results."""
        self._count += 1
        tag, before = f"wait{self._count}", self._label
        waits = self._any_empty(loads, [load.first for load in loads])
        self.line(f"br i1 {waits}, label %{tag}.again, label %{tag}.there")
        self._start(f"{tag}.again")
        self.line(f"%{tag}.count = phi i32 [ 0, %{before} ], [ %{tag}.next, %{tag}.again ]")
        again = [load.again() for load in loads]
        self.line(f"%{tag}.next = add i32 %{tag}.count, 1")
        lost = f'"{{.reg .pred lost; setp.eq.u32 lost, $0, {POLLS}; @lost trap;}}", "r"'
        self.line(f"call void asm sideeffect {lost}(i32 %{tag}.next) #1")
        self.line(f"br i1 {self._any_empty(loads, again)}, label %{tag}.again, label %{tag}.there")
        self._start(f"{tag}.there")
        return [
            self.temp(f"phi {load.type} [ {load.first}, %{before} ], [ {last}, %{tag}.again ]")
            for load, last in zip(loads, again, strict=True)
        ]

    def _any_empty(self, loads: Sequence[_Load], results: Sequence[str]) -> str:
        both = zip(loads, results, strict=True)
        return self._any([self.temp(f"and i1 {load.is_empty(name)}, {load.flag}") for load, name in both])

    def _publish(self, memory: Binding, inst: Inst) -> None:
        (index, value), bits = inst.args, memory.dtype.bits
        type_, first, lanes = text.memory_type(value.type), self.address(memory, index), value.type.lanes
        elements = []
        for lane in range(lanes):
            element = self.name(value)
            if lanes > 1:
                element = self.temp(f"extractelement {type_} {element}, i64 {lane}")
            scalar = text.memory_type(value.type.with_lanes(1))
            if scalar != f"i{bits}":
                element = self.temp(f"bitcast {scalar} {element} to i{bits}")
            empty = self.temp(f"icmp eq i{bits} {element}, -1")
            elements.append(self.temp(f"select i1 {empty}, i{bits} {(1 << bits - 1) - 1}, i{bits} {element}"))
        constraint = "h" if bits == 16 else "r"
        together = lanes if inst.attrs.get("aligned") and lanes in (2, 4) else 1
        for lane in range(0, lanes, together):
            address = self.temp(f"add i64 {first}, {lane * memory.dtype.itemsize}") if lane else first
            stored = "{" + ", ".join(f"${n + 1}" for n in range(together)) + "}" if together > 1 else "$1"
            vector = f"v{together}." if together > 1 else ""
            operands = ", ".join(
                [f"i64 {address}", *(f"i{bits} {x}" for x in elements[lane : lane + together])]
            )
            constraints = ",".join(["l", *[constraint] * together])
            code = f'"st.{SCOPE}.{vector}b{bits} [$0], {stored};", "{constraints}"({operands}) #1'
            self.line(f"call void asm sideeffect {code}")


def _users(body: Block) -> dict[int, Block]:
    """For each value the innermost block that has all of its uses; casts and choices use their operands where
    they are used."""
    paths: dict[int, tuple[Block, ...]] = {}
    later: dict[int, Sequence[KValue]] = {}

    def use(values: Iterable[KValue], path: tuple[Block, ...]) -> None:
        for value in values:
            known = paths.get(value.id)
            both = zip(known or path, path, strict=False)
            paths[value.id] = tuple(x for x, _ in itertools.takewhile(lambda pair: pair[0] is pair[1], both))
            if value.id in later and paths[value.id] != known:
                use(later[value.id], path)

    def visit(block: Block, path: tuple[Block, ...]) -> None:
        path = (*path, block)
        for node in block.nodes:
            if isinstance(node, Inst):
                if node.op in ("cast", "select") and node.result is not None:
                    later[node.result.id] = node.args
                else:
                    use(node.args, path)
            elif isinstance(node, For):
                use((node.lower, node.upper, node.step, *node.inits), path)
                visit(node.body, path)
                use(node.yields, (*path, node.body))
            else:
                use((node.condition,), path)
                visit(node.then, path)
                visit(node.otherwise, path)

    visit(body, ())
    return {number: path[-1] for number, path in paths.items()}


def _used(node: For | If) -> Iterator[KValue]:
    """What a node and all nodes in it use."""
    blocks = (node.body,) if isinstance(node, For) else (node.then, node.otherwise)
    for inner in (node, *(inner for block in blocks for inner in block.walk())):
        if isinstance(inner, Inst):
            yield from inner.args
        elif isinstance(inner, For):
            yield from (inner.lower, inner.upper, inner.step, *inner.inits, *inner.yields)
        else:
            yield inner.condition
