"""GPU schedule of products that read one large operand once: a matrix times one vector or a few.

A workgroup computes some outputs of every row. Its invocations share the reduced dim, and their partial sums
are added by subgroup operations and workgroup memory. If the operand is contiguous along the reduced dim:

    for chunk in my share of the reduced dim:          one load of 16 bytes for each column
        for column in my columns, for row in rows:     x is read once for all columns
            sums[row][column] += x[row, chunk] . w[column, chunk]
    y[row, column] = epilogue(sum over invocations of sums[row][column])

and if it is contiguous along the outputs, with a vector of outputs in every load:

    for k in my share of the reduced dim:
        for row in rows: sums[row][0:8] += x[row, k] * w[k, column:column + 8]

No subgroup size is assumed: the first invocation of a subgroup writes its sum; subgroups that work
independently count their invocations.
"""

from __future__ import annotations

import dataclasses
import itertools

from mansard.codegen.evaluate import register_dtype
from mansard.codegen.kernel_target import KernelTarget
from mansard.codegen.loop_nest import Nest
from mansard.codegen.parameters import Parameters
from mansard.codegen.schedules.common.base import Frame, Scheduled, estimate, power_of_two_below
from mansard.codegen.schedules.gpu.gemv.form import MAX_LOAD_BYTES, Form, analyse, chunk_of, rows_of
from mansard.codegen.schedules.gpu.gemv.sums import (
    MAX_SUMS,
    SUBGROUP_TYPES,
    GemvTile,
    OutputMajor,
    ReducedMajor,
)

WIDTH = 128
"""Invocations of a workgroup in the reduced-major form."""
ACROSS_WIDTH = 256
"""Invocations of a workgroup in the output-major form."""
SECTOR, SEGMENT = 32, 128
"""Contiguous bytes of a row that neighbouring invocations read: the smallest memory transaction, and a whole
cache line."""
COLUMNS = 4
SHORT, LONG = 8, 16
"""The steps of an output up to which a subgroup computes it instead of a workgroup; and the steps of an
invocation from which its loads are wide nevertheless."""
FEW = 4
"""The ratio of the element sizes of the vector and the large operand from which reading the vector dominates:
more outputs then share each element, and loads are narrower, which brings them closer together."""
MIN_WIDTH = 64
SUBGROUP = 32
"""The assumed size of subgroups if it is unknown; a wrong one only costs time."""


def applies(nest: Nest) -> bool:
    """Whether the nest is a product that reads its large operand once."""
    return analyse(nest) is not None


def schedule(nest: Nest, target: KernelTarget, name: str, parameters: Parameters | None = None) -> Scheduled:
    """The kernel of a nest for which `applies` is True; ``parameters`` is one of `candidates`."""
    form = _form(nest)
    tile = GemvTile(**parameters.to_dict()) if parameters else default_tile(nest, form, target)
    maker = ReducedMajor if form.along else OutputMajor
    return maker(Frame(nest, target, name, tile.width), form, tile).run()


def candidates(nest: Nest, target: KernelTarget) -> list[Parameters]:
    """The tiles to try, the default first."""
    form = _form(nest)
    first = default_tile(nest, form, target)
    tiles = [
        first,
        *(
            _reduced_major_tiles(nest, form, target)
            if form.along
            else _output_major_tiles(form, first, target)
        ),
    ]
    return [tile.parameters() for tile in dict.fromkeys(tiles) if _fits(nest, form, tile, target)]


def default_tile(nest: Nest, form: Form, target: KernelTarget) -> GemvTile:
    """Few columns for small operands, so that the whole device is reading; more for large ones."""
    return _reduced_major(nest, form, target) if form.along else _output_major(nest, form, target)


def _reduced_major(nest: Nest, form: Form, target: KernelTarget) -> GemvTile:
    """Independent subgroups if each output takes few steps, or if rows share the weights; workgroups for
    outputs with many steps, or if there are fewer outputs than resident subgroups."""
    width = power_of_two_below(min(WIDTH, target.workgroup_invocations))
    outputs, rows = _outputs(nest, form), rows_of(nest, form)
    ratio = _ratio(nest, form)
    load = MAX_LOAD_BYTES if ratio < FEW else MAX_LOAD_BYTES // 2
    steps = -(-estimate(nest.total(form.root.inner)) // chunk_of(nest, form, load))
    size = _subgroup(target, width)
    if _can_be_alone(form, target) and (rows > 1 or steps <= SHORT * size):
        single = GemvTile(power_of_two_below(min(2 * WIDTH, target.workgroup_invocations)), size, 1, 4, 1)
        wanted = [single]
        if rows > 1 or ratio >= FEW:
            counts = [c for c in (8, 4, 2) if c <= max(ratio, COLUMNS)]
            wanted = [GemvTile(width, size, c, 1, 1, load) for c in counts]
        for tile in wanted:
            enough = outputs // tile.columns * size >= target.resident_invocations
            if (enough or (rows > 1 and tile is wanted[-1])) and _fits(nest, form, tile, target):
                return tile
    split = min(width, 1 << max(0, (steps - 1).bit_length()))
    if load < MAX_LOAD_BYTES and ratio == FEW and steps >= LONG * split:
        steps, load = steps // 2, MAX_LOAD_BYTES
    tile = GemvTile(width, split, COLUMNS, 1, load=load)
    wanted_invocations = target.resident_invocations * (2 if ratio < FEW else 1)
    while tile.columns > 1 and (
        outputs * split // tile.columns < wanted_invocations or not _fits(nest, form, tile, target)
    ):
        tile = dataclasses.replace(tile, columns=tile.columns // 2)
    share = -(-steps // split)
    loads = COLUMNS if ratio < FEW else 2 * COLUMNS  # in flight, as far as registers allow
    unroll = next((u for u in (4, 2) if u * tile.columns <= loads and share % u == 0), 1)
    return dataclasses.replace(tile, unroll=unroll)


def _ratio(nest: Nest, form: Form) -> int:
    """The size of the other operands' elements relative to the large operand's. They are the same for all
    outputs and are read again for each, unless an invocation has several."""
    others = [
        read.value.type.dtype.bits
        for read in nest.reads(form.root)
        if read.address is not None and read is not form.large and form.inner[-1] in dict(read.address.terms)
    ]
    return max(others, default=0) // form.large.value.type.dtype.bits


def _output_major(nest: Nest, form: Form, target: KernelTarget) -> GemvTile:
    """Whole cache lines of rows if there are enough columns for every core, otherwise parts of them."""
    width = power_of_two_below(min(ACROSS_WIDTH, target.workgroup_invocations))
    columns, bits = chunk_of(nest, form), form.large.value.type.dtype.bits
    column_groups = min(width, max(1, SEGMENT * 8 // (columns * bits)))
    wanted = 3 * target.compute_units // 2
    while column_groups > 1 and (
        column_groups * columns * bits > SECTOR * 8
        and _outputs(nest, form) // (column_groups * columns) < wanted
    ):
        column_groups //= 2
    tile = GemvTile(width, width // column_groups, columns, 8)
    while not _fits(nest, form, tile, target):
        if tile.width > MIN_WIDTH and tile.split > 1:
            tile = dataclasses.replace(tile, width=tile.width // 2, split=tile.split // 2)
        elif tile.columns > 1:
            tile = dataclasses.replace(tile, columns=tile.columns // 2)
        else:
            break
    return tile


def _reduced_major_tiles(nest: Nest, form: Form, target: KernelTarget) -> list[GemvTile]:
    widths = [w for w in (64, 128, 256) if w <= target.workgroup_invocations]
    alone = _can_be_alone(form, target)
    depth = estimate(nest.total(form.root.inner))
    loads = (MAX_LOAD_BYTES,) if _ratio(nest, form) < FEW else (MAX_LOAD_BYTES, MAX_LOAD_BYTES // 2)
    tiles = []
    for load, width, columns, unroll in itertools.product(loads, widths, (1, 2, 4, 8), (1, 2, 4)):
        if alone:
            tiles.append(GemvTile(width, _subgroup(target, width), columns, unroll, 1, load))
        steps = -(-depth // chunk_of(nest, form, load))
        split = min(width, 1 << max(0, (steps - 1).bit_length()))
        tiles.append(GemvTile(width, split, columns, unroll, load=load))
    return tiles


def _output_major_tiles(form: Form, first: GemvTile, target: KernelTarget) -> list[GemvTile]:
    return [
        GemvTile(width, width // column_groups, columns, unroll)
        for width in (128, 256)
        if width <= target.workgroup_invocations
        for column_groups in (2, 4, 8, 16, 32)
        for columns in sorted({first.columns, max(1, first.columns // 2)})
        for unroll in (2, 4, 8)
    ]


def _can_be_alone(form: Form, target: KernelTarget) -> bool:
    """Whether subgroups can add the sums independently."""
    return (
        "subgroup_arithmetic" in target.features and register_dtype(form.root.op.body.dtype) in SUBGROUP_TYPES
    )


def _subgroup(target: KernelTarget, width: int) -> int:
    smallest, greatest = target.subgroup
    return min(width, smallest if smallest == greatest else SUBGROUP)


def _outputs(nest: Nest, form: Form) -> int:
    return estimate(nest.total([loop for g in (form.column, *form.rest) for loop in g]))


def _form(nest: Nest) -> Form:
    form = analyse(nest)
    assert form is not None, "the schedule does not apply"
    return form


def _fits(nest: Nest, form: Form, tile: GemvTile, target: KernelTarget) -> bool:
    """Whether the accumulators fit the registers, and the exchanged sums fit workgroup memory."""
    cells = rows_of(nest, form) * tile.columns
    size = max(4, register_dtype(form.root.op.body.dtype).itemsize)
    exchanged = 0 if tile.alone else size * cells * tile.width
    return cells <= MAX_SUMS and exchanged <= target.shared_memory_bytes and tile.width % tile.split == 0
