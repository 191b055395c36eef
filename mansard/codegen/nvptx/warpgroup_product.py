"""The instruction ``warpgroup_product`` as PTX (see `mansard.codegen.kernel.warpgroups`).

The 48 KiB of shared memory that a workgroup has within Vulkan hold a step of the left factor (128 rows of
128 bytes) and a ring of four slots for the right one, each of 64 columns of 128 bytes::

    for each step of 64 elements:
        for each of 4 slots:
            wait until the slot's columns are there
            slot 0: load the left factor's matrices into registers
            start the products of all rows with the slot's 64 columns
            wait for those of the slot before, and start to refill that one
            slot 1: start to refill the left factor's memory
            ask the L2 cache for the slot's columns two steps ahead

Copies go from memory to shared memory past the registers (``cp.async``); rows are swizzled by 128 bytes, as
matrix descriptors call it: chunk ``c`` of 16 bytes of row ``r`` lies at ``c ^ (r % 8)``. A slot's rows are
columns of the right factor where its depth is contiguous, else positions of the depth.

Measured on an H200, 2048x12288x4096 in bf16: 499 TFLOP/s. Prototypes of it in CUDA: 435, with the requests
to the L2 cache 455; with 192 KiB of shared memory, which Vulkan does not give, and four steps of 256 columns
in it: 664. With 48 KiB, two slots on their way instead of three: 360; four subgroups that copy and named
barriers: 385; weights by way of registers: 265 to 335; steps of 16 elements: 365; factors read as fragments,
without shared memory: 170, from an order of their own in memory: 250 to 294.
"""

from __future__ import annotations

from mansard.codegen.kernel.warpgroups import CHUNK, COLUMNS, DEPTH, LEFT, LINES, RIGHT, ROWS, SUMS
from mansard.dtypes import DType

ROW_BYTES = DEPTH * 2
SLOTS = COLUMNS // CHUNK
SLOT_BYTES = CHUNK * ROW_BYTES
RING = ROWS * ROW_BYTES
"""Where the ring begins in shared memory."""
GROUP_BYTES = LINES * ROW_BYTES
"""From what an invocation copies to what it copies next."""
MATRIX_DEPTH = 16
AHEAD = 2
"""Steps by which the L2 cache is asked for the right factor."""
SWIZZLE_128 = 1 << 62
"""In a matrix descriptor: rows are swizzled by 128 bytes."""
GROUP_OF_ROWS = (8 * ROW_BYTES >> 4) << 32
"""In a matrix descriptor: the distance of 8 rows, in 16 bytes."""
_SLOT_SUMS = SUMS // SLOTS
_SLOT_COPIES = RIGHT // SLOTS


def assembly(dtype: DType, along: str) -> tuple[str, str]:
    """The text of LLVM inline assembly and its constraints, for a right factor along "depth" or "side".

    Results are the sums; operands the addresses of the left and of the right factor and the bytes of a step
    of the latter (64 bits), steps, the address of the shared memory and the invocation's number (32 bits).
    """
    lines = ["{", *_declarations(), *_prepare(), *_first_copies(), "LOOP:"]
    for slot in range(SLOTS):
        lines += _slot(slot, {DType.BF16: "bf16", DType.F16: "f16"}[dtype], along)
    lines += [
        f"add.s64 offset, offset, {ROW_BYTES};",
        "mov.b64 now, then;",
        f"add.s64 then, then, {_RIGHT_STEP};",
        "add.s32 step, step, 1;",
        f"setp.lt.s32 more, step, {_STEPS};",
        "@more bra LOOP;",
        "wgmma.wait_group.sync.aligned 0;",
        "}",
    ]
    operands = ["=f"] * SUMS + ["l"] * (LEFT + RIGHT + 1) + ["r"] * 3 + ["~{memory}"]
    return "\n".join(lines), ",".join(operands)


_LEFT = [f"${SUMS + i}" for i in range(LEFT)]
_RIGHT = [f"${SUMS + LEFT + i}" for i in range(RIGHT)]
_RIGHT_STEP, _STEPS, _MEMORY, _THREAD = (f"${SUMS + LEFT + RIGHT + i}" for i in range(4))


def _declarations() -> list[str]:
    return [
        ".reg .pred more, after, ahead, first;",
        ".reg .b32 row, chunk, target, lane, at, line, ring, step, next, soon;",
        f".reg .b32 matrix<{DEPTH // MATRIX_DEPTH}>, factor<{4 * DEPTH // MATRIX_DEPTH}>;",
        ".reg .b64 offset, now, then, later, from, slots, slot;",
    ]


def _prepare() -> list[str]:
    """Where this invocation copies to, where its subgroup's rows of the left factor are, and the ring's
    descriptor."""
    matrices = ["and.b32 chunk, row, 7;"]
    for k in range(DEPTH // MATRIX_DEPTH):
        matrices += [
            f"add.s32 at, lane, {2 * k};",
            "xor.b32 at, at, chunk;",
            "shl.b32 at, at, 4;",
            f"add.s32 matrix{k}, line, at;",
        ]
    return [
        f"shr.u32 row, {_THREAD}, 3;",
        f"and.b32 chunk, {_THREAD}, 7;",
        "setp.eq.s32 first, chunk, 0;",
        "and.b32 at, row, 7;",
        "xor.b32 at, at, chunk;",
        "shl.b32 at, at, 4;",
        f"mad.lo.s32 target, row, {ROW_BYTES}, at;",
        f"add.s32 target, target, {_MEMORY};",
        # ldmatrix: lanes 0 to 15 name the rows at the first 8 elements, 16 to 31 those at the next 8.
        f"shr.u32 row, {_THREAD}, 5;",
        f"and.b32 lane, {_THREAD}, 31;",
        "and.b32 at, lane, 15;",
        "mad.lo.s32 row, row, 16, at;",
        "shr.u32 lane, lane, 4;",
        f"mad.lo.s32 line, row, {ROW_BYTES}, {_MEMORY};",
        *matrices,
        f"add.s32 ring, {_MEMORY}, {RING};",
        "shr.u32 ring, ring, 4;",
        "cvt.u64.u32 slots, ring;",
        f"or.b64 slots, slots, {SWIZZLE_128 | GROUP_OF_ROWS | 1 << 16};",
        "mov.b32 step, 0;",
        "mov.b64 offset, 0;",
        "mov.b64 now, 0;",
        f"mov.b64 then, {_RIGHT_STEP};",
        *(f"mov.f32 ${i}, 0f00000000;" for i in range(SUMS)),
    ]


def _first_copies() -> list[str]:
    lines = [line for i in range(LEFT) for line in _copy_left(i, 0)]
    for slot in range(SLOTS - 1):
        lines += [*_copy_slot(slot, "now"), "cp.async.commit_group;"]
    return lines


def _copy(target: int, further: int = 0, guard: str = "") -> str:
    """16 bytes from the register ``from`` to this invocation's place in a part of shared memory."""
    return f"{guard}cp.async.cg.shared.global.L2::128B [target+{target}], [from+{further}], 16;"


def _copy_left(number: int, further: int, guard: str = "") -> list[str]:
    place = f"{guard}add.s64 from, {_LEFT[number]}, offset;"
    return [place, _copy(number * GROUP_BYTES, further, guard)]


def _copy_slot(slot: int, offset: str, guard: str = "") -> list[str]:
    """A slot of the step that begins ``offset`` behind the first."""
    lines = []
    for i in range(_SLOT_COPIES):
        lines.append(f"{guard}add.s64 from, {_RIGHT[slot * _SLOT_COPIES + i]}, {offset};")
        lines.append(_copy(RING + slot * SLOT_BYTES + i * GROUP_BYTES, 0, guard))
    return lines


def _slot(slot: int, dtype: str, along: str) -> list[str]:
    lines = [
        f"cp.async.wait_group {SLOTS - 2};",
        "fence.proxy.async.shared::cta;",
        "bar.sync 0;",
    ]
    if slot == 0:
        lines += ["wgmma.wait_group.sync.aligned 0;", *_load_left()]
    lines.append("wgmma.fence.sync.aligned;")
    for k in range(DEPTH // MATRIX_DEPTH):
        lines += _multiply(slot, k, dtype, along)
    lines += ["wgmma.commit_group.sync.aligned;", "wgmma.wait_group.sync.aligned 1;", "bar.sync 0;"]
    if slot == 1:
        lines += [line for i in range(LEFT) for line in _copy_left(i, ROW_BYTES, "@after ")]
    if slot:
        lines += _copy_slot(slot - 1, "then", "@after ")
    else:
        lines += [
            *_copy_slot(SLOTS - 1, "now"),
            "add.s32 next, step, 1;",
            f"setp.lt.s32 after, next, {_STEPS};",
            f"add.s32 soon, step, {AHEAD};",
            f"setp.lt.and.s32 ahead, soon, {_STEPS}, first;",
            f"mad.lo.s64 later, {_RIGHT_STEP}, {AHEAD}, now;",
        ]
    lines.append("cp.async.commit_group;")
    for i in range(_SLOT_COPIES):
        lines.append(f"@ahead add.s64 from, {_RIGHT[slot * _SLOT_COPIES + i]}, later;")
        lines.append("@ahead prefetch.global.L2 [from];")
    return lines


def _load_left() -> list[str]:
    lines = []
    for k in range(DEPTH // MATRIX_DEPTH):
        registers = ", ".join(f"factor{4 * k + i}" for i in range(4))
        lines.append(f"ldmatrix.sync.aligned.m8n8.x4.shared.b16 {{{registers}}}, [matrix{k}];")
    return lines


def _multiply(slot: int, k: int, dtype: str, along: str) -> list[str]:
    sums = ", ".join(f"${slot * _SLOT_SUMS + i}" for i in range(_SLOT_SUMS))
    left = ", ".join(f"factor{4 * k + i}" for i in range(4))
    sideways = along == "side"
    start = k * MATRIX_DEPTH * (ROW_BYTES if sideways else 2)
    place = (slot * SLOT_BYTES + start) >> 4
    return [
        f"add.s64 slot, slots, {place};",
        f"wgmma.mma_async.sync.aligned.m64n{CHUNK}k{MATRIX_DEPTH}.f32.{dtype}.{dtype} "
        f"{{{sums}}}, {{{left}}}, slot, 1, 1, 1, {int(sideways)};",
    ]
