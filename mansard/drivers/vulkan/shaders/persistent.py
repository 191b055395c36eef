"""Persistent kernels: successive dispatches in one launch of PTX.

A persistent kernel has as many blocks as the device can hold at a time. Records in memory say which dispatch
to run next, with which arguments, and between two that depend on each other all blocks wait at a counter.
That takes about as long as a pipeline barrier. What it gains: weights of later dispatches are copied to
shared memory in the meantime (`mansard.drivers.vulkan.shaders.weight_streams`), which no dispatch can do that
has not begun. And dispatches that pass on small vectors (`mansard.hal.exchanges`) need no wait for all
blocks: they wait for the elements that they read.

A dispatch is run by the *body* of its kernel, PTX statements (`mansard.codegen.nvptx.persistent`) that end at
the label ``JOIN`` and find in registers:

    words     the address in shared memory of the dispatch's argument table
    first     the first workgroup that these invocations run, then every ``stride``-th below ``groups``
    groups
    stride
    thread    the number of the invocation in its workgroup
    memory    the address in shared memory of the workgroup's
    barrier   the hardware barrier of the workgroup's invocations
    polls     which of the dispatch's bindings are exchanged values, a bit for each

A block of `THREADS` runs several smaller workgroups at a time. All blocks have to be on the device at the
same time, or they would wait for ever. So launches are recorded for one queue, which begins work in order;
`BLOCKS` blocks fit on a core, and there are as many as that for all cores. Work of other queues that is on
the device ends, and makes room.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from mansard.drivers.vulkan.shaders import weight_streams
from mansard.drivers.vulkan.shaders.abi import PTX, BodyInfo, ShaderModule
from mansard.drivers.vulkan.shaders.weight_streams import Slots, slots_for
from mansard.hal.exchanges import Exchange
from mansard.hal.executable import EntryPoint
from mansard.hal.service import Finalizer
from mansard.hal.weight_streams import WeightStream

if TYPE_CHECKING:
    from mansard.drivers.vulkan.shaders.ptx import PtxModules

THREADS = 256
"""Invocations of a block."""
BLOCKS = 2
"""Blocks on a core: with one, copies of weights do not use the memory's bandwidth; with four, bodies have too
few registers."""
MAX_SHARED = 46 * 1024
"""Bytes of shared memory for weight streams and for the workgroups of a block: within Vulkan, the driver
loses the device when a PTX kernel asks for more than 48 KiB."""
RECORD = 256
"""Bytes of a record."""
HEAD_WORDS = 4
"""Words of a record before the argument table: the number of the body and ``groups``; whether to wait, twice
``start`` and ``polls``; the memory of exchanged values that all blocks empty again, its address and its units
of `FILL`."""
FILL = 16
"""Bytes that an invocation empties at a time."""
MAX_WORDS = RECORD // 8 - HEAD_WORDS
"""The most words of an argument table."""
COUNTERS = 256
"""Bytes behind the records: the count of blocks that have arrived at barriers so far, and `DONE` bytes
further that of blocks which have finished. The last one to finish sets both to 0."""
DONE = 128
END = (1 << 32) - 1
"""Behind the last entry of a block's list of dispatches."""
LOOKS = 1 << 25
"""How often a block looks at the counter, 0.5 us apart or more, before it gives the device up for lost."""
ENTRY = EntryPoint("mansard_persistent", 0, 6, (THREADS, 1, 1))


@dataclass(frozen=True)
class Body:
    """The PTX statements of a kernel, and the invocations of a workgroup."""

    text: str
    threads: int
    info: BodyInfo

    @property
    def stream(self) -> WeightStream | None:
        """The weights that are copied ahead for it."""
        return self.info.stream

    @property
    def slot_bytes(self) -> int:
        """Bytes of a slot of its stream; 0 without one."""
        return self.info.stream.slot_bytes if self.info.stream is not None else 0

    @property
    def exchange(self) -> Exchange:
        """The values that it may pass on or wait for."""
        return self.info.exchange

    def together(self, memory: int) -> int:
        """Workgroups that a block with so many bytes of shared memory runs at a time; 0 if it has too few."""
        shared = self.info.shared
        return min(THREADS // self.threads, memory // shared if shared else THREADS)


@dataclass(frozen=True)
class Record:
    """A dispatch of a persistent kernel."""

    body: int
    groups: int
    table: Sequence[int]
    waits: bool
    """Whether all blocks wait for each other behind it."""
    polls: int = 0
    """The bindings of exchanged values, a bit for each."""
    emptied: tuple[int, int] = (0, 0)
    """Address and bytes of exchanged values that were read for the last time behind an earlier wait."""
    start: int = 0
    """The block with the first workgroup."""

    def words(self) -> list[int]:
        """Its words in memory."""
        start, size = self.emptied
        flags = self.waits | self.start << 1 | self.polls << 32
        words = [self.body | self.groups << 32, flags, start, size // FILL]
        words += self.table
        return words + [0] * (RECORD // 8 - len(words))


@dataclass(frozen=True)
class StreamRecord:
    """A stream of a dispatch: the addresses of its operands."""

    stream: WeightStream
    addresses: tuple[int, ...]

    def words(self) -> list[int]:
        """Its words in memory."""
        stream = self.stream
        products, parts = stream.products, stream.products * stream.parts
        counts = (products.bit_length() - 1) | (parts.bit_length() - 1) << weight_streams.PARTS
        words = [stream.rows | parts << 32, stream.slot_bytes | (counts << 32 if products > 1 else 0)]
        every = weight_streams.WARPS // products
        for number, (operand, address) in enumerate(zip(stream.operands, self.addresses, strict=True)):
            product = number // stream.of_product
            place = operand.offset | every << weight_streams.EVERY | product << weight_streams.PRODUCT
            words += [address, operand.part | place << 32]
        return words + [0] * (weight_streams.RECORD // 8 - len(words))


class PersistentKernel:
    """A kernel ready to be launched; its module goes when nobody holds it."""

    def __init__(self, modules: PtxModules, text: str) -> None:
        loaded = modules.load(ShaderModule(PTX, text.encode(), (), THREADS), (ENTRY,))
        (self.function,) = loaded.functions
        self._finalizer = Finalizer(self, modules.release, loaded.module)


class PersistentKernels:
    """The persistent kernels of one device, by their text. Thread-safe."""

    def __init__(self, modules: PtxModules) -> None:
        self._modules = modules
        self._lock = threading.Lock()
        self._kernels: WeakValueDictionary[str, PersistentKernel] = WeakValueDictionary()

    def kernel(self, bodies: Sequence[Body]) -> PersistentKernel:
        """The kernel that runs some bodies, which the driver compiles where it is not there yet. Raises
        DeviceError."""
        text = module_text(bodies)
        with self._lock:
            kernel = self._kernels.get(text)
            if kernel is None:
                kernel = self._kernels[text] = PersistentKernel(self._modules, text)
            return kernel


def module_text(bodies: Sequence[Body]) -> str:
    """The PTX module of the kernel that runs these bodies."""
    slots = slots_of(bodies)
    memory = memory_beside(slots)
    shared = max([16, *(body.info.shared * body.together(memory) for body in bodies)])
    values = {"entry": ENTRY.name, "threads": THREADS, "blocks": BLOCKS, "shared": shared}
    values["fill"] = FILL
    values |= {"records": 2 * RECORD, "record": RECORD, "head": 8 * HEAD_WORDS}
    values["load"] = _LOAD.format(record=RECORD, end=END)
    return "\n".join(
        [
            ".version 8.0",
            ".target sm_90a",
            ".address_size 64",
            _HEAD.format(**values, streams=slots.declarations() if slots else ""),
            slots.start() if slots else "",
            _FIRST.format(**values),
            _LOOP.format(**values),
            *(f"setp.eq.u32 p, kind, {n};\n@p bra BODY{n};" for n in range(len(bodies))),
            "bra JOIN;",
            *(_placed(number, body, memory, slots) for number, body in enumerate(bodies)),
            _TAIL.format(record=RECORD, done=DONE, looks=LOOKS, end=END),
        ]
    )


def slots_of(bodies: Iterable[Body]) -> Slots | None:
    """The slots of a kernel that runs as many of these bodies as fit beside two of them; None where none of
    these reads a stream.

    Where streams ask for more than there is, those that ask for most are left out.
    """
    bodies = list(bodies)
    streamed = [body for body in bodies if body.stream is not None]
    slots = None
    while streamed:
        size = max(body.slot_bytes for body in streamed)
        needed = max(body.info.shared for body in streamed)
        slots = slots_for(size, needed, MAX_SHARED)
        if slots is not None:
            break
        streamed.remove(max(streamed, key=lambda body: body.info.shared + Slots(2, body.slot_bytes).memory))
    while slots is not None and slots.count > 2:
        least = Slots(2, slots.size).memory
        room, all_room = MAX_SHARED - slots.memory, MAX_SHARED - least
        if not any(room < body.info.shared <= all_room for body in bodies):
            break
        slots = Slots(slots.count - 1, slots.size)
    return slots


def fits(body: Body, slots: Slots | None) -> bool:
    """Whether a kernel with these slots can run a body."""
    if body.stream is not None and (slots is None or body.slot_bytes > slots.size):
        return False
    return body.together(memory_beside(slots)) > 0


def memory_beside(slots: Slots | None) -> int:
    """Bytes that a block has for workgroups beside slots."""
    return MAX_SHARED - (slots.memory if slots is not None else 0)


def _placed(number: int, body: Body, memory: int, slots: Slots | None) -> str:
    """A body behind its label, and what it finds in registers."""
    together, text = body.together(memory), body.text.replace("$L__", f"$B{number}_")
    return "\n".join(
        [
            f"BODY{number}:",
            *_divided(body.threads),
            f"setp.ge.u32 p, part, {together};",
            "@p bra JOIN;",
            "mad.lo.u32 first, blocks, part, rank;",
            f"mul.lo.u32 stride, blocks, {together};",
            f"mul.wide.u32 memory, part, {body.info.shared};",
            "mov.u64 wide, all_memory;",
            "add.u64 memory, memory, wide;",
            "add.u32 barrier, part, 1;",
            slots.expanded(text) if slots is not None else text,
        ]
    )


def _divided(threads: int) -> tuple[str, str]:
    """The number of an invocation's workgroup in its block, and its own in that. PTX's division by a literal
    becomes that by a variable."""
    if threads & (threads - 1) == 0:
        return f"shr.u32 part, tid, {threads.bit_length() - 1};", f"and.b32 thread, tid, {threads - 1};"
    return f"div.u32 part, tid, {threads};", f"rem.u32 thread, tid, {threads};"


_HEAD = """
.visible .entry {entry}(.param .align 8 .b8 table[48])
.maxntid {threads}, 1, 1
.minnctapersm {blocks}
{{
.shared .align 512 .b8 record[{records}];
.shared .align 128 .b8 all_memory[{shared}];
.reg .pred p, more, one, early;
.reg .b32 tid, block, blocks, step, kind, groups, flags, target, seen, part, thread, first, stride;
.reg .b32 barrier, now, polls, looks, number, rank, coming, following;
.reg .b64 counter, words, memory, wide, list;
{streams}
mov.u32 tid, %tid.x;
mov.u32 block, %ctaid.x;
mov.u32 blocks, %nctaid.x;
setp.eq.u32 one, tid, 0;
setp.lt.u32 early, tid, {record} / 8;
mov.u32 step, 0;
mov.u32 target, 0;
"""
"""The registers of all bodies."""

_FIRST = """
ld.param.b64 list, [table+40];
ld.param.b32 number, [table+16];
mul.lo.u32 number, number, block;
mul.wide.u32 wide, number, 4;
add.u64 list, list, wide;
ld.global.nc.b32 following, [list];
{{
{load}
}}
"""
"""The block's list of dispatches: the first record is on its way to shared memory."""

_LOAD = """
.reg .b32 word;
.reg .b64 from;
mov.u32 coming, following;
setp.ne.u32 more, coming, {end};
add.u64 list, list, 4;
@more ld.global.nc.b32 following, [list];
ld.param.b64 from, [table];
and.pred p, more, early;
mul.wide.u32 wide, coming, {record};
add.u64 from, from, wide;
mul.wide.u32 wide, tid, 8;
add.u64 from, from, wide;
and.b32 word, step, 1;
mul.lo.u32 word, word, {record};
mad.lo.u32 word, tid, 8, word;
mov.u32 number, record;
add.u32 word, word, number;
@p cp.async.ca.shared.global [word], [from], 8;
"""
"""Copy the next record of the block's list, if there is one, to the one of two places in shared memory that
is its turn; the number of the one after that is needed only with the next."""

_LOOP = """
cp.async.wait_all;
bar.sync 0;
LOOP:
mov.u32 now, record;
and.b32 number, step, 1;
mad.lo.u32 now, number, {record}, now;
add.u32 step, step, 1;
{{
{load}
}}
ld.shared.v2.b32 {{kind, groups}}, [now];
ld.shared.v2.b32 {{flags, polls}}, [now+8];
shr.u32 flags, flags, 1;
setp.lt.u32 p, block, flags;
sub.u32 rank, block, flags;
@p add.u32 rank, rank, blocks;
{{
.reg .b64 start, units, mine, every, at;
.reg .b32 empty;
ld.shared.v2.b64 {{start, units}}, [now+16];
mad.lo.u32 number, block, {threads}, tid;
cvt.u64.u32 mine, number;
mul.lo.u32 number, blocks, {threads};
cvt.u64.u32 every, number;
mov.u32 empty, 0xffffffff;
EMPTYING:
setp.ge.u64 p, mine, units;
@p bra EMPTIED;
mad.lo.u64 at, mine, {fill}, start;
st.global.v4.b32 [at], {{empty, empty, empty, empty}};
add.u64 mine, mine, every;
bra EMPTYING;
EMPTIED:
}}
cvt.u64.u32 words, now;
add.u64 words, words, {head};
"""
"""The choice of a body: a record is in shared memory, and the next one on its way there. What is emptied is
used again by the next launch."""

_TAIL = """
JOIN:
mov.u32 now, record;
and.b32 number, step, 1;
xor.b32 number, number, 1;
mad.lo.u32 now, number, {record}, now;
ld.shared.b32 flags, [now+8];
cp.async.wait_all;
bar.sync 0;
and.b32 flags, flags, 1;
setp.ne.u32 p, flags, 0;
@!p bra NEXT;
add.u32 target, target, blocks;
@!one bra TOGETHER;
ld.param.b64 counter, [table+8];
red.release.gpu.global.add.u32 [counter], 1;
mov.u32 looks, 0;
WAIT:
ld.acquire.gpu.global.u32 seen, [counter];
setp.ge.u32 p, seen, target;
@p bra TOGETHER;
add.u32 looks, looks, 1;
setp.lt.u32 p, looks, {looks};
@p bra WAIT;
trap;
TOGETHER:
bar.sync 0;
NEXT:
setp.ne.u32 more, coming, {end};
@more bra LOOP;
@!one bra LEAVE;
ld.param.b64 counter, [table+8];
sub.u32 number, blocks, 1;
atom.acq_rel.gpu.global.inc.u32 seen, [counter+{done}], number;
setp.eq.u32 p, seen, number;
@p st.global.u32 [counter], 0;
LEAVE:
ret;
}}
"""
"""Behind the bodies: the barrier, and after the last record the counters set to 0."""
