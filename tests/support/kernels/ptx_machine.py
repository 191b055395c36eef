"""A machine for the PTX of persistent kernels: the statements of the driver, and of bodies written for tests.

Every thread runs by itself, in an order that random numbers choose, copies end at times that these choose,
and registers and shared memory hold random numbers at first: what a program leaves to chance comes out
differently from seed to seed. Memory is sequentially consistent, so missing fences are not found. Only the
statements that these programs have are known. Memory that nobody has allocated raises `MachineError`, as do
threads that wait for each other.
"""

from __future__ import annotations

import operator
import random
import re
from collections import ChainMap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

WARP = 32
QUANTUM = 64
"""The most statements of a thread before another one's turn."""
_VECTOR = re.compile(r"\{([^{};]*)\}")
_LABEL = re.compile(r"([A-Z$][\w$]*):")
_STATEMENT = re.compile(r"(?:@(!?)([\w%$]+)\s+)?([a-z][\w.:]*)\s*(.*)", re.DOTALL)
_SIZES = {"8": 1, "16": 2, "32": 4, "64": 8, "pred": 1}
_ARITHMETIC: dict[str, Callable[..., int]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul.lo": lambda a, b: a * b,
    "mul.wide": lambda a, b: a * b,
    "mul.hi": lambda a, b: a * b >> 32,
    "mad.lo": lambda a, b, c: a * b + c,
    "div": lambda a, b: a // b,
    "rem": lambda a, b: a % b,
    "min": min,
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
    "shl": lambda a, b: a << b if b < 64 else 0,
    "shr": lambda a, b: a >> b,
    "mov": lambda a: a,
    "cvt": lambda a: a,
    "bfe": lambda a, first, count: a >> first & ((1 << count) - 1),
    "selp": lambda a, b, p: a if p else b,
}
_COMPARISONS: dict[str, Callable[[int, int], bool]] = {
    name: getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")
}


class MachineError(Exception):
    """What a program must not do."""


class Memory:
    """Bytes at addresses, in pieces."""

    def __init__(self, start: int = 1 << 32) -> None:
        self._pieces: list[tuple[int, bytearray]] = []
        self._next = start

    def allocate(self, data: bytes) -> int:
        """The address of a new piece with these bytes."""
        start = self._next
        self._pieces.append((start, bytearray(data)))
        self._next += -(-len(data) // 4096) * 4096 + 4096
        return start

    def read(self, address: int, size: int) -> bytes:
        """Bytes from an address on."""
        data, at = self._piece(address, size)
        return bytes(data[at : at + size])

    def write(self, address: int, data: bytes) -> None:
        """Store bytes from an address on."""
        piece, at = self._piece(address, len(data))
        piece[at : at + len(data)] = data

    def _piece(self, address: int, size: int) -> tuple[bytearray, int]:
        for start, data in self._pieces:
            if start <= address and address + size <= start + len(data):
                return data, address - start
        raise MachineError(f"{size} bytes at {address:#x}, where no memory is")


@dataclass
class _Arrival:
    """An mbarrier for one arrival."""

    phase: int = 0
    arrived: bool = False
    bytes: int = 0

    def settle(self) -> None:
        if self.arrived and self.bytes == 0:
            self.phase, self.arrived = self.phase ^ 1, False


@dataclass
class _Block:
    number: int
    shared: Memory
    symbols: dict[str, int]
    threads: list[_Thread] = field(default_factory=list)
    arrivals: dict[int, _Arrival] = field(default_factory=dict)
    copies: list[tuple[int, int, int, int]] = field(default_factory=list)
    """Copies on their way: target, source, bytes and mbarrier."""

    def meet(self, thread: _Thread) -> None:
        """Let threads go on that wait for each other, where the last of them has come."""
        for name, group in (("block", self.threads), ("warp", self._warp(thread))):
            running = [t for t in group if not t.done]
            if thread.waits == name and all(t.waits == name for t in running):
                for t in running:
                    t.waits = ""

    def _warp(self, thread: _Thread) -> list[_Thread]:
        first = thread.number // WARP * WARP
        return self.threads[first : first + WARP]


@dataclass
class _Thread:
    number: int
    block: _Block
    registers: list[int]
    at: int = 0
    waits: str = ""
    done: bool = False
    late: list[tuple[int, int, int]] = field(default_factory=list)
    """Copies that are there once it has waited for them: target, source, bytes."""


_Step = Callable[["_Thread"], None]


class Machine:
    """Launches of one entry."""

    def __init__(self, text: str, memory: Memory, blocks: int, threads: int, seed: int) -> None:
        self.memory, self.blocks, self.threads = memory, blocks, threads
        self.random = random.Random(seed)
        self._sizes: dict[int, int] = {}
        """Bytes of registers."""
        self._shared: list[tuple[str, int]] = []
        self._steps: list[_Step] = []
        _Parser(self, text[text.index(".maxntid") :]).run()

    def launch(self, table: Sequence[int], most: int = 6_000_000) -> None:
        """Run all blocks; raises MachineError after ``most`` statements, and where threads wait for ever."""
        self.table = list(table)
        blocks = [self._block(number) for number in range(self.blocks)]
        threads = [thread for block in blocks for thread in block.threads]
        done = 0
        while threads:
            self.random.shuffle(threads)
            before = done
            for thread in threads:
                done += self._run(thread)
            for block in blocks:
                self._copy(block)
            threads = [thread for thread in threads if not thread.done]
            if done > most or (done == before and not any(block.copies for block in blocks)):
                places = sorted({(t.block.number, t.number // WARP, t.at, t.waits) for t in threads})
                raise MachineError(f"threads wait for ever: {places[:8]}")

    def _block(self, number: int) -> _Block:
        shared = Memory(1 << 12)  # its addresses have 32 bits
        places = {name: shared.allocate(self.random.randbytes(size)) for name, size in self._shared}
        block = _Block(number, shared, places)
        sizes = [self._sizes[n] for n in range(len(self._sizes))]
        for n in range(self.threads):
            registers = [self.random.getrandbits(8 * size if size > 1 else 1) for size in sizes]
            block.threads.append(_Thread(n, block, registers))
        return block

    def _run(self, thread: _Thread) -> int:
        """Some statements of a thread; how many."""
        steps, count = self._steps, self.random.randint(1, QUANTUM)
        if thread.late and self.random.random() < 0.5:
            self.arrive(thread, self.random.randint(1, len(thread.late)))
        for number in range(count):
            if thread.waits or thread.done:
                return number
            step = steps[thread.at]
            thread.at += 1
            step(thread)
        return count

    def arrive(self, thread: _Thread, count: int) -> None:
        """End the first copies that a thread has to wait for."""
        for target, source, size in thread.late[:count]:
            thread.block.shared.write(target, self.memory.read(source, size))
        del thread.late[:count]

    def _copy(self, block: _Block) -> None:
        """Some of the copies that are on their way."""
        self.random.shuffle(block.copies)
        for _ in range(self.random.randint(0, len(block.copies))):
            target, source, size, arrival = block.copies.pop()
            block.shared.write(target, self.memory.read(source, size))
            block.arrivals[arrival].bytes -= size
            block.arrivals[arrival].settle()


def _fail(thread: _Thread) -> None:
    raise MachineError(f"trap in block {thread.block.number}")


class _Scope:
    """Registers and labels between braces."""

    def __init__(self, outer: _Scope | None) -> None:
        self.outer = outer
        self.registers: ChainMap[str, int] = outer.registers.new_child() if outer else ChainMap()
        self.labels: ChainMap[str, int] = outer.labels.new_child() if outer else ChainMap()


class _Parser:
    """The statements of an entry as functions of a thread."""

    def __init__(self, machine: Machine, text: str) -> None:
        self.machine, self.scope = machine, _Scope(None)
        text = re.sub(r"//[^\n]*", "", text)
        self.text = _VECTOR.sub(lambda m: f"<{m[1]}>", text[text.index("{") :])
        self.names: set[str] = set()

    def run(self) -> None:
        """Fill in the machine's steps."""
        pending: list[tuple[_Scope, str]] = []
        for part in re.split(r"([;{}])", self.text):
            if part == "{":
                self.scope = _Scope(self.scope)
                continue
            if part == "}":
                assert self.scope.outer is not None
                self.scope = self.scope.outer
                continue
            statement = part.strip().rstrip(";")
            while (label := _LABEL.match(statement)) is not None:
                self.scope.labels[label[1]] = len(pending)
                statement = statement[label.end() :].strip()
            if statement.startswith("."):
                self._declare(statement)
            elif statement:
                pending.append((self.scope, statement))
        for scope, statement in pending:
            self.scope = scope
            self.machine._steps.append(self._step(statement))

    def _declare(self, statement: str) -> None:
        reg = re.fullmatch(r"\.reg\s+\.[a-z]*(\w+)\s+(.*)", statement, re.DOTALL)
        if reg is not None:
            for name in reg[2].split(","):
                several = re.fullmatch(r"\s*(%\w+)<(\d+)>\s*", name)
                names = [f"{several[1]}{n}" for n in range(int(several[2]))] if several else [name.strip()]
                for one in names:
                    number = self.scope.registers[one] = len(self.machine._sizes)
                    self.machine._sizes[number] = _SIZES[re.sub(r"\D*", "", reg[1]) or "pred"]
            return
        shared = re.fullmatch(r"\.shared\s+\.align\s+\d+\s+\.b(\d+)\s+(\w+)\[(\d+)\]", statement)
        if shared is None:
            raise MachineError(f"unknown: {statement}")
        self.machine._shared.append((shared[2], int(shared[1]) // 8 * int(shared[3])))
        self.names.add(shared[2])

    # Operands -----------------------------------------------------------------------------------
    def _value(self, text: str) -> Callable[[_Thread], int]:
        text = text.strip()
        number = self.scope.registers.get(text)
        if number is not None:
            return lambda t: t.registers[number]
        special: dict[str, Callable[[_Thread], int]] = {
            "%tid.x": lambda t: t.number,
            "%ctaid.x": lambda t: t.block.number,
            "%nctaid.x": lambda t: self.machine.blocks,
        }
        if text in special:
            return special[text]
        if text in self.names:
            return lambda t: t.block.symbols[text]
        if not re.fullmatch(r"[-+*/ 0-9a-fxA-F]+", text):
            raise MachineError(f"unknown operand {text}")
        constant = int(eval(text.replace("/", "//"), {}))
        return lambda t: constant

    def _address(self, text: str) -> Callable[[_Thread], int]:
        inside = re.fullmatch(r"\[([\w%$]+)((?:\+-?\d+)*)\]", text.strip())
        if inside is None:
            raise MachineError(f"unknown address {text}")
        offset = sum(int(n) for n in re.findall(r"\+(-?\d+)", inside[2]))
        base = self._value(inside[1])
        return lambda t: base(t) + offset

    def _target(self, text: str) -> Callable[[_Thread, int], None]:
        number = self.scope.registers.get(text.strip())
        if number is None:
            raise MachineError(f"unknown register {text}")
        mask = (1 << 8 * self.machine._sizes[number]) - 1

        def store(t: _Thread, value: int) -> None:
            t.registers[number] = value & mask

        return store

    # Statements ---------------------------------------------------------------------------------
    def _step(self, statement: str) -> _Step:
        found = _STATEMENT.fullmatch(statement)
        if found is None:
            raise MachineError(f"unknown: {statement}")
        negated, guard, op, rest = found.groups()
        operands = [part.strip() for part in re.split(r",(?![^<]*>)", rest)] if rest.strip() else []
        step = self._statement(op, operands)
        if guard is None:
            return step
        holds, wanted = self._value(guard), not negated

        def guarded(t: _Thread) -> None:
            if bool(holds(t)) == wanted:
                step(t)

        return guarded

    def _statement(self, op: str, operands: list[str]) -> _Step:
        name, *kinds = op.split(".")
        if name in ("bra", "ret", "trap", "bar"):
            return self._control(name, kinds, operands)
        if name in ("ld", "st", "atom", "red"):
            return self._access(name, kinds, operands)
        if name in ("cp", "mbarrier", "fence", "createpolicy"):
            return self._asynchronous(op, operands)
        if name == "setp":
            return self._compare(kinds, operands)
        if kinds[-1].startswith("s") or kinds[-1].startswith("f"):
            raise MachineError(f"unknown type of {op}")
        key = f"{name}.{kinds[0]}" if f"{name}.{kinds[0]}" in _ARITHMETIC else name
        if key not in _ARITHMETIC:
            raise MachineError(f"unknown instruction {op}")
        function, values = _ARITHMETIC[key], [self._value(o) for o in operands[1:]]
        if operands[0].startswith("<"):  # the halves of a number
            low, high = (self._target(part) for part in operands[0].strip("<>").split(","))

            def split(t: _Thread) -> None:
                value = values[0](t)
                low(t, value)
                high(t, value >> 32)

            return split
        target = self._target(operands[0])
        return lambda t: target(t, int(function(*[value(t) for value in values])))

    def _compare(self, kinds: list[str], operands: list[str]) -> _Step:
        target, left, right = self._target(operands[0]), *map(self._value, operands[1:3])
        holds, signed = _COMPARISONS[kinds[0]], kinds[-1].startswith("s")
        if kinds[1:-1] not in ([], ["and"]):
            raise MachineError(f"unknown comparison {'.'.join(kinds)}")
        also = self._value(operands[3]) if len(operands) > 3 else lambda t: 1

        def number(value: int) -> int:
            value &= 0xFFFFFFFF
            return value - (1 << 32) if value >> 31 else value

        def step(t: _Thread) -> None:
            a, b = left(t), right(t)
            if signed:
                a, b = number(a), number(b)
            target(t, int(holds(a, b) and bool(also(t))))

        return step

    def _control(self, name: str, kinds: list[str], operands: list[str]) -> _Step:
        if name == "bra":
            if (place := self.scope.labels.get(operands[0])) is None:
                raise MachineError(f"no label {operands[0]}")
            return lambda t: setattr(t, "at", place)
        if name == "ret":

            def leave(t: _Thread) -> None:
                t.done = True

            return leave
        if name == "trap":
            return _fail
        group = "warp" if kinds[0] == "warp" else "block"
        if group == "block" and operands[0] != "0":
            raise MachineError("barriers of a part of a block are not known")

        def wait(t: _Thread) -> None:
            t.waits = group
            t.block.meet(t)

        return wait

    def _access(self, name: str, kinds: list[str], operands: list[str]) -> _Step:
        machine = self.machine
        size = _SIZES[re.sub(r"\D", "", kinds[-1])]
        if "param" in kinds:
            target, offset = self._target(operands[0]), int(operands[1].strip("[]").partition("+")[2] or 0)
            return lambda t: target(t, machine.table[offset // 8])
        shared = "shared" in kinds

        def memory(t: _Thread) -> Memory:
            return t.block.shared if shared else machine.memory

        if name == "ld":
            targets = [self._target(part) for part in operands[0].strip("<>").split(",")]
            place = self._address(operands[1])

            def load(t: _Thread) -> None:
                data = memory(t).read(place(t), size * len(targets))
                for n, store in enumerate(targets):
                    store(t, int.from_bytes(data[n * size : (n + 1) * size], "little"))

            return load
        if name == "st":
            place, values = (
                self._address(operands[0]),
                [self._value(v) for v in operands[1].strip("<>").split(",")],
            )
            mask = (1 << 8 * size) - 1

            def store_all(t: _Thread) -> None:
                data = b"".join((value(t) & mask).to_bytes(size, "little") for value in values)
                memory(t).write(place(t), data)

            return store_all
        result = self._target(operands.pop(0)) if name == "atom" else lambda t, value: None
        place, value = self._address(operands[0]), self._value(operands[1])

        def update(t: _Thread) -> None:
            old = int.from_bytes(memory(t).read(place(t), size), "little")
            new = (0 if old >= value(t) else old + 1) if "inc" in kinds else old + value(t)
            memory(t).write(place(t), (new & 0xFFFFFFFF).to_bytes(size, "little"))
            result(t, old)

        return update

    def _asynchronous(self, op: str, operands: list[str]) -> _Step:
        machine = self.machine
        if op.startswith(("fence", "createpolicy")):
            return lambda t: None
        if op == "cp.async.wait_all":
            return lambda t: machine.arrive(t, len(t.late))
        if op.startswith("cp.async.bulk"):
            to, source, count, arrival = (
                self._address(operands[0]),
                self._address(operands[1]),
                self._value(operands[2]),
                self._address(operands[3]),
            )

            def request(t: _Thread) -> None:
                if source(t) % 16 or count(t) % 16 or to(t) % 16:
                    raise MachineError("a copy is not aligned")
                t.block.copies.append((to(t), source(t), count(t), arrival(t)))

            return request
        if op.startswith("cp.async"):
            to, source, count = self._address(operands[0]), self._address(operands[1]), int(operands[2])
            return lambda t: t.late.append((to(t), source(t), count))
        if op.startswith("mbarrier.init"):
            place = self._address(operands[0])
            return lambda t: t.block.arrivals.__setitem__(place(t), _Arrival())
        if op.startswith("mbarrier.arrive"):
            place, expected = self._address(operands[1]), self._value(operands[2])

            def arrive(t: _Thread) -> None:
                arrival = t.block.arrivals[place(t)]
                if arrival.arrived:
                    raise MachineError("a slot is requested again before its last copy has ended")
                arrival.arrived = True
                arrival.bytes += expected(t)
                arrival.settle()

            return arrive
        if op.startswith("mbarrier.try_wait"):
            target, place, parity = (
                self._target(operands[0]),
                self._address(operands[1]),
                self._value(operands[2]),
            )
            return lambda t: target(t, int(t.block.arrivals[place(t)].phase != parity(t)))
        raise MachineError(f"unknown instruction {op}")
