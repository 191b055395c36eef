"""GPU schedule of attention: a workgroup has some query rows of one head and iterates over blocks of their
keys.

Milakov and Gimelshein, "Online normalizer calculation for softmax" (2018), and Dao et al.,
"FlashAttention" (2022). Keys, values and queries are read once into workgroup memory, as vectors of four f32.
The invocations of a workgroup are arranged in two ways:

* for the scores along keys and rows; an invocation keeps its rows' maxima and its partial sums of them;
* for the weighted sum along columns and rows, and, if those are few, also along the keys of a block; the
  partial sums are added at the end.

The exponentials of a block pass from one arrangement to the other through workgroup memory. Where there are
few rows (decoding), a workgroup has those of all heads that share keys, so that these are read once.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from mansard import dims
from mansard.analysis.attention import AttentionForm
from mansard.codegen.kernel_target import KernelTarget
from mansard.codegen.nvptx.target import FEATURE as PTX_FEATURE
from mansard.codegen.parameters import Parameters
from mansard.codegen.schedules.common.attention_nest import (
    AttentionLoops,
    AttentionNest,
    WorkDistribution,
    classify,
    distribute,
)
from mansard.codegen.schedules.common.base import Frame, Scheduled, estimate, power_of_two_below
from mansard.codegen.schedules.gpu.attention import matrix, matrix_tiles
from mansard.codegen.schedules.gpu.attention.direct import (
    DirectAttention,
    DirectTile,
    direct_tile,
)
from mansard.codegen.schedules.gpu.attention.tile import FlashTile
from mansard.codegen.schedules.gpu.attention.work_split import AttentionTile
from mansard.dims import DimLike
from mansard.ir.dispatch import Dispatch
from mansard.passes.parallel.split_attention import FEW_KEYS, SUBGROUPS

_ROWS = (32, 16, 8, 4)
_KEYS = (128, 64, 32, 16, 8, 4)
_THREADS = 128


def schedule(
    dispatch: Dispatch,
    form: AttentionForm,
    target: KernelTarget,
    name: str,
    parameters: Parameters | None = None,
) -> Scheduled:
    """The kernel of an attention; a workgroup computes tiles of query rows of one head, each over all
    keys."""
    nest = AttentionNest(dispatch, form)
    loops = classify(nest)
    tiles = matrix_tiles.tiles_for(nest, target)
    work = distribute(nest, loops)
    direct = direct_tile(nest, work, target)
    wanted = parameters.to_dict() if parameters else {}
    first = not tiles or _in_one_launch(nest, target)
    if direct is not None and ("direct" in wanted or (first and not wanted)):
        return _direct(nest, loops, work, target, name, direct)
    if tiles and (not wanted or "matrix" in wanted):
        known = {matrix_tiles.parameters_of(t): t for t in reversed(tiles)}
        chosen = known.get(parameters, tiles[0]) if parameters else tiles[0]
        return matrix.schedule(nest, target, name, chosen)
    tile = default_tile(nest, loops, target) if not parameters else tile_of(parameters)
    assert tile is not None
    frame = Frame(nest, target, name, tile.threads)
    b, ev = frame.b, frame.ev
    extent: DimLike = nest.total([d for g in work.rows for d in g])
    counts = (nest.total([d for g in work.rest for d in g]), dims.ceildiv(extent, tile.rows))
    total = dims.product(counts)
    workgroups = frame.workgroups(total)
    flash = FlashTile(frame, nest, loops, work.rows, tile)
    with b.for_(b.workgroup_id(0), ev.dim(total), ev.dim(workgroups)) as loop, ev.scope():
        rest, number = frame.decode(loop.index, counts)
        if work.rest:
            frame.bind_flat(work.rest, rest)
        flash.run(b.mul(number, b.idx(tile.rows)))
    return frame.finish((workgroups, 1, 1))


def _in_one_launch(nest: AttentionNest, target: KernelTarget) -> bool:
    """Whether the target may run a kernel without matrices in one launch with others, and there are so few
    keys that this is faster, or the chunk is one of a cyclic distribution, which has few keys up to high
    positions. Steps of Qwen3-0.6B with caches of 2,120 and 4,200 positions take 846 and 935 us on an H200,
    with matrices 990 and 1,220."""
    few = estimate(nest.extents[nest.key_loop]) <= FEW_KEYS
    return PTX_FEATURE in target.features and (few or nest.form.is_cyclic)


def _direct(
    nest: AttentionNest,
    loops: AttentionLoops,
    work: WorkDistribution,
    target: KernelTarget,
    name: str,
    tile: DirectTile,
) -> Scheduled:
    """The kernel of few rows: a workgroup for each of the loops that select keys and values."""
    target = target.with_one_subgroup_size()
    frame = Frame(nest, target, name, SUBGROUPS * target.subgroup[0])
    b, ev = frame.b, frame.ev
    total = nest.total([d for g in work.rest for d in g])
    workgroups = frame.workgroups(total)
    kernel = DirectAttention(frame, nest, loops, work, tile)
    with b.for_(b.workgroup_id(0), ev.dim(total), ev.dim(workgroups)) as loop, ev.scope():
        if work.rest:
            frame.bind_flat(work.rest, loop.index)
        kernel.run()
        if not (isinstance(total, int) and total <= target.max_workgroups):
            b.barrier()  # the results of these rows are read
    return frame.finish((workgroups, 1, 1))


def candidates(dispatch: Dispatch, form: AttentionForm, target: KernelTarget) -> Sequence[Parameters]:
    """Every tile that fits the target, the default first."""
    nest = AttentionNest(dispatch, form)
    loops = classify(nest)
    default = default_tile(nest, loops, target)
    if default is None:
        return (Parameters(),)
    work = distribute(nest, loops)
    max_rows = 2 * estimate(nest.total([d for g in work.rows for d in g]))
    direct = direct_tile(nest, work, target)
    few = [Parameters.of(direct=direct.keys)] if direct is not None else []
    units = [matrix_tiles.parameters_of(t) for t in matrix_tiles.tiles_for(nest, target)]
    first, second = (few, units) if _in_one_launch(nest, target) else (units, few)
    tiles = [default]
    sizes = [r for r in _ROWS if r < max_rows or r == _ROWS[-1]]
    for rows, keys, threads in itertools.product(sizes, _KEYS, (64, 128, 256)):
        tile = make_tile(nest, target, rows, keys, threads)
        if tile is not None and tile not in tiles:
            tiles.append(tile)
    return [*dict.fromkeys([*first, *second]), *(parameters_of(tile) for tile in tiles)]


def applies(form: AttentionForm, target: KernelTarget) -> bool:
    """Whether some tile fits the target's workgroup memory."""
    return _make_tile(form.depth, form.columns, target, _ROWS[-1], _KEYS[-1], _THREADS) is not None


def default_tile(nest: AttentionNest, loops: AttentionLoops, target: KernelTarget) -> AttentionTile | None:
    """The tile with the most rows that still gives every core a workgroup; None if no tile fits the
    memory."""
    work = distribute(nest, loops)
    rows = estimate(nest.total([d for g in work.rows for d in g]))
    heads = estimate(nest.total([d for g in work.rest for d in g]))
    fitting = [r for r in _ROWS if r < 2 * rows or r == _ROWS[-1]]
    busy = [r for r in fitting if heads * -(-rows // r) >= target.compute_units]
    length = estimate(nest.extents[nest.key_loop], 1 << 10)
    for count in (*busy, *reversed([r for r in fitting if r not in busy])):
        for keys in _KEYS:
            if keys >= 2 * length and keys != _KEYS[-1]:
                continue
            tile = make_tile(nest, target, count, keys, _THREADS)
            if tile is not None:
                return tile
    return None


def make_tile(
    nest: AttentionNest, target: KernelTarget, rows: int, keys: int, threads: int
) -> AttentionTile | None:
    """`_make_tile` with the sizes of a nest."""
    return _make_tile(*nest.depth_and_columns(), target, rows, keys, threads)


def _make_tile(
    depth: int, columns: int, target: KernelTarget, rows: int, keys: int, threads: int
) -> AttentionTile | None:
    """A tile with its arrangement of invocations; None if it does not fit the target."""
    threads = power_of_two_below(min(threads, target.workgroup_invocations))
    smallest, largest = target.subgroup
    preferred = smallest if smallest == largest and smallest & (smallest - 1) == 0 else 8
    # Four rows per invocation: each element of a key is then used in four products.
    along = min(keys, threads, max(preferred, 4 * threads // rows))
    threads = min(threads, along * rows)
    tile = AttentionTile(rows, keys, threads, along)
    return tile if tile.shared_bytes(depth, columns) <= target.shared_memory_bytes else None


def parameters_of(tile: AttentionTile) -> Parameters:
    """The schedule parameters of a tile."""
    return Parameters.of(rows=tile.rows, keys=tile.keys, threads=tile.threads, along=tile.along)


def tile_of(parameters: Parameters) -> AttentionTile:
    """The inverse of `parameters_of`."""
    return AttentionTile(*(parameters[n] for n in ("rows", "keys", "threads", "along")))
