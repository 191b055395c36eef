"""Weight streams in persistent kernels: copies that are in flight before the dispatch that reads them begins.

A subgroup has two or more slots of shared memory (`Slots`), and an mbarrier for each that its copies complete
(``cp.async.bulk``). When it has read a slot, it requests the next part of its share there, whether that
belongs to the same dispatch or to a later one: no other subgroup takes part in that, and no wait for other
blocks delays it. Weights are read once, so the L2 cache is told to evict them first.

The record of a stream in memory, `RECORD` bytes::

    u32 rows; u32 parts of a row, of all products; u32 bytes of a slot
    u32 the products' number as a power of two, and from bit `PARTS` on that of the parts; 0 for one product
    for each operand: u64 address; u32 bytes of a part
                      u32 byte offset in a slot; from bit `EVERY` on how many parts of its product lie between
                      two of a subgroup, from bit `PRODUCT` on its product

A subgroup copies it to shared memory one stream ahead; lane ``i`` requests the parts of operand ``i``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from mansard.hal.weight_streams import MAX_OPERANDS, SUBGROUPS

WARPS = SUBGROUPS
"""Subgroups of a block."""
PARTS = 8
EVERY, PRODUCT = 16, 24
"""Where bit fields of a record begin."""
MAX_SLOTS = 8
RECORD = 128
"""Bytes of a record: its head, a place for each operand, and one that stays empty, which lanes without an
operand read."""
LINE = 128
_MARK = re.compile(r"\bstream\.wait\s+(%\w+);|\bstream\.next;")


@dataclass(frozen=True)
class Slots:
    """How many slots a subgroup has, and the bytes of each."""

    count: int
    size: int

    @property
    def memory(self) -> int:
        """Bytes of shared memory of a block."""
        return WARPS * (self.count * (self.size + 8) + RECORD)

    def declarations(self) -> str:
        """Memory and registers. ``turn`` counts the slots that the subgroup has read; the first of them is at
        ``first_slot``, its mbarrier at ``first_arrival``. Of the stream that is
        being requested ``left`` parts remain, the next of which begins at ``source``; ``stream`` is the
        number of the one after it."""
        return f"""
.shared .align 1024 .b8 all_slots[{WARPS * self.count * self.size}];
.shared .align 8 .b8 all_arrivals[{WARPS * self.count * 8}];
.shared .align 16 .b8 all_records[{WARPS * RECORD}];
.reg .b32 turn, left, bytes, place, slot_bytes, stream, first_slot, first_arrival;
.reg .b64 source, policy;
"""

    def start(self) -> str:
        """The statements with which a block requests its first parts, as many as there are slots."""
        zero = "".join(f"mov.u32 {name}, 0;\n" for name in ("turn", "left", "bytes", "stream"))
        barriers = "".join(
            f"@leads mbarrier.init.shared::cta.b64 [arrival+{8 * number}], 1;\n"
            for number in range(self.count)
        )
        return f"""
createpolicy.fractional.L2::evict_first.b64 policy, 1.0;
{zero}
{{
{_LANE}
mul.lo.u32 first_slot, warp, {self.count * self.size};
mov.u32 first_arrival, all_slots;
add.u32 first_slot, first_slot, first_arrival;
mov.u32 first_arrival, all_arrivals;
mad.lo.u32 first_arrival, warp, {8 * self.count}, first_arrival;
{self._slot()}
.reg .pred leads;
setp.eq.u32 leads, lane, 0;
{barriers}
fence.proxy.async.shared::cta;
{_LOAD}
}}
{self._next() * self.count}
mov.u32 turn, 0;
"""

    def expanded(self, statements: str) -> str:
        """The statements of a kernel with those of its stream in the marked places."""
        return _MARK.sub(lambda mark: self._wait(mark[1]) if mark[1] else self._next(), statements)

    def _slot(self) -> str:
        """The slot of the current turn, and its mbarrier."""
        return f"""
.reg .b32 slot, arrival, phase, round;
{self._divided()}
mad.lo.u32 slot, phase, {self.size}, first_slot;
mad.lo.u32 arrival, phase, 8, first_arrival;
"""

    def _divided(self) -> str:
        """``turn`` by the number of slots: ``round``, and the rest ``phase``. PTX's own division by a literal
        becomes that by a variable."""
        if self.count & (self.count - 1) == 0:
            return f"""
shr.u32 round, turn, {self.count.bit_length() - 1};
and.b32 phase, turn, {self.count - 1};
"""
        return f"""
mul.hi.u32 round, turn, {(1 << 32) // self.count + 1};
mul.lo.u32 phase, round, {self.count};
sub.u32 phase, turn, phase;
"""

    def _next(self) -> str:
        return f"""
bar.warp.sync 0xffffffff;
{{
{_LANE}
{self._slot()}
{_REQUEST}
}}
add.u32 turn, turn, 1;
"""

    def _wait(self, register: str) -> str:
        return f"""
{{
{self._slot()}
.reg .pred arrived;
and.b32 phase, round, 1;
LOOK:
mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 arrived, [arrival], phase;
@!arrived bra LOOK;
mov.u32 {register}, slot;
}}
"""


def slots_for(slot_bytes: int, shared: int, room: int) -> Slots | None:
    """As many slots of ``slot_bytes`` as fit a block's ``room`` beside ``shared`` bytes; None where two do
    not: a subgroup then has no copy in flight while it reads a slot.

    Two slots of 2 KiB in each of 16 subgroups of a core reach the bandwidth of an H200, as do four of 1 KiB.
    """
    size = -(-slot_bytes // LINE) * LINE
    count = MAX_SLOTS
    while count > 1 and Slots(count, size).memory + shared > room:
        count -= 1
    return Slots(count, size) if count > 1 else None


_LANE = """
.reg .b32 lane, warp;
and.b32 lane, tid, 31;
shr.u32 warp, tid, 5;
"""

_LOAD = f"""
{{
.reg .b32 count, at;
.reg .b64 from, offset;
.reg .pred loads;
ld.param.b64 from, [table+24];
ld.param.b32 count, [table+32];
mul.wide.u32 offset, stream, {RECORD};
add.u64 from, from, offset;
mul.wide.u32 offset, lane, 16;
add.u64 from, from, offset;
mov.u32 at, all_records;
mad.lo.u32 at, warp, {RECORD}, at;
mad.lo.u32 at, lane, 16, at;
setp.lt.u32 loads, stream, count;
setp.lt.and.u32 loads, lane, {RECORD // 16}, loads;
@loads cp.async.ca.shared.global [at], [from], 16;
}}
"""
"""Copy the record of the next stream, which arrives while the parts of this one are requested."""

_REQUEST = f"""
.reg .b32 rows, parts, counts, count, low, high, several;
.reg .b64 address, part, offset;
.reg .pred p;
AGAIN:
setp.ne.u32 p, left, 0;
@p bra COPY;
ld.param.b32 count, [table+32];
setp.ge.u32 p, stream, count;
@p bra NONE;
cp.async.wait_all;
bar.warp.sync 0xffffffff;
mov.u32 low, all_records;
mad.lo.u32 low, warp, {RECORD}, low;
ld.shared.v4.b32 {{rows, parts, slot_bytes, counts}}, [low];
min.u32 high, lane, {MAX_OPERANDS};
mad.lo.u32 low, high, 16, low;
ld.shared.v2.b64 {{address, part}}, [low+16];
mul.lo.u32 low, rows, block;
div.u32 low, low, blocks;
add.u32 high, block, 1;
mul.lo.u32 high, rows, high;
div.u32 high, high, blocks;
sub.u32 high, high, low;
mad.lo.u32 high, high, parts, {WARPS - 1};
sub.u32 high, high, warp;
shr.u32 left, high, {WARPS.bit_length() - 1};
mov.b64 {{bytes, place}}, part;
setp.ne.u32 p, counts, 0;
@p bra SEVERAL;
mad.lo.u32 low, low, parts, warp;
bra ONE;
SEVERAL:
and.b32 several, counts, {(1 << PARTS) - 1};
shr.u32 counts, counts, {PARTS};
shr.u32 high, warp, counts;
add.u32 low, low, high;
sub.u32 high, parts, 1;
and.b32 high, high, warp;
sub.u32 counts, counts, several;
shl.b32 low, low, counts;
shr.u32 several, high, counts;
shl.b32 rows, several, counts;
sub.u32 high, high, rows;
add.u32 low, low, high;
shr.u32 high, place, {PRODUCT};
setp.ne.u32 p, high, several;
@p mov.u32 bytes, 0;
ONE:
mul.wide.u32 offset, low, bytes;
add.u64 source, address, offset;
add.u32 stream, stream, 1;
bar.warp.sync 0xffffffff;
{_LOAD}
bra AGAIN;
COPY:
sub.u32 left, left, 1;
setp.eq.u32 p, lane, 0;
@p mbarrier.arrive.expect_tx.shared::cta.b64 _, [arrival], slot_bytes;
setp.ne.u32 p, bytes, 0;
and.b32 low, place, {(1 << EVERY) - 1};
add.u32 low, slot, low;
@p cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint
  [low], [source], bytes, [arrival], policy;
bfe.u32 high, place, {EVERY}, {PRODUCT - EVERY};
mul.wide.u32 offset, bytes, high;
add.u64 source, source, offset;
NONE:
"""
"""Request the next part of the subgroup's share, if there is one, for the slot of this turn. Rows are divided
among blocks as `mansard.codegen.schedules.gpu.gemv.streamed` does it."""
