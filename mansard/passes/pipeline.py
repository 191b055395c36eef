"""The pipeline: every pass of a compilation in order, from the imported Graph to marked dispatches.

`mansard.passes.pass_manager` runs it. A pass that stands here twice is called ``name.2`` the second time;
those are the names that dumps carry and that ``--stop-after``, ``--skip-pass`` and ``--from`` take.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from mansard.analysis.attention import AttentionForm
from mansard.ir.dispatch import Dispatch
from mansard.ir.graph import Graph
from mansard.ir.region import Partition
from mansard.passes.canonical.copies import read_through_copies
from mansard.passes.canonical.cse import eliminate_common
from mansard.passes.canonical.dce import eliminate_dead
from mansard.passes.canonical.fold_constants import fold_constants, inline_generated
from mansard.passes.canonical.gathers import affine_gathers
from mansard.passes.canonical.guard_states import guard_states
from mansard.passes.canonical.inline import inline_into_gathers
from mansard.passes.canonical.inline_uniform import inline_uniform
from mansard.passes.canonical.joins import read_through_joins
from mansard.passes.canonical.lower_attention import lower_attention
from mansard.passes.canonical.lower_views import lower_views
from mansard.passes.canonical.masks import merge_masks
from mansard.passes.canonical.pairs import unroll_pairs
from mansard.passes.canonical.settle_asserts import drop_index_asserts, settle_asserts
from mansard.passes.canonical.settle_indices import settle_indices
from mansard.passes.canonical.simplify import simplify
from mansard.passes.canonical.softmax_guards import guard_rows
from mansard.passes.canonical.unique_indices import mark_unique_indices
from mansard.passes.canonical.unit_dims import read_through_unit_dims
from mansard.passes.canonical.unpack_states import unpack_states
from mansard.passes.canonical.views import simplify_views
from mansard.passes.fusion.fuse import fuse
from mansard.passes.fusion.horizontal_fusion import fuse_horizontally
from mansard.passes.fusion.in_place import mark_in_place
from mansard.passes.fusion.joined_results import write_joins
from mansard.passes.fusion.packable import mark_constants, mark_packable
from mansard.passes.fusion.side_by_side import put_side_by_side
from mansard.passes.layout.channels_last import channels_last
from mansard.passes.layout.padding import read_padding
from mansard.passes.layout.permute import permute_producers
from mansard.passes.layout.row_order import order_rows
from mansard.passes.layout.split_loops import split_consumers
from mansard.passes.layout.weights import lay_out_weights
from mansard.passes.parallel.large_constants import split_large_constants
from mansard.passes.parallel.partition import ALIGNMENT
from mansard.passes.parallel.split_attention import split_attention
from mansard.passes.parallel.split_reduction import split_reductions
from mansard.passes.pass_manager import Fixpoint, PassStep, Step, with_unique_names
from mansard.passes.products.byte_maps import merge_byte_maps
from mansard.passes.products.byte_readers import read_bytes
from mansard.passes.products.chosen_matrices import read_chosen_matrices
from mansard.passes.products.demote import demote_products
from mansard.passes.products.factor_scales import factor_scales
from mansard.passes.products.fold_scales import fold_scales
from mansard.passes.products.integer_products import demote_integers
from mansard.passes.products.quantisation import Quantisation
from mansard.passes.products.quantised_products import quantised_products
from mansard.passes.products.requantisation import fold_requantisation
from mansard.passes.products.unsigned_bytes import unsigned_bytes
from mansard.passes.products.weight_only import quantise_weights


@dataclass(frozen=True)
class PipelineSettings:
    """What the pipeline depends on beside the model. The defaults are those of a CPU."""

    precision: str = "f32"
    gpu: bool = False
    """Whether a GPU is among the targets asked for."""
    attention_workgroups: int | None = None
    """Workgroups that an attention should have, where all targets asked for are GPUs."""
    buffer_limit: tuple[int, str] | None = None
    """The largest buffer in bytes, and the target it is a limit of; None where no target has one."""
    fuse_attention: Callable[[AttentionForm], bool] | None = None
    """Whether every target has a kernel for an attention as a whole."""
    fuse_products: Callable[[Dispatch], bool] | None = None
    """Whether every target has a kernel for products with each other, or with a norm before them, and gains
    by it; None where none has."""
    fuse_transposes: Callable[[Dispatch], bool] | None = None
    """Whether every target has a kernel for what ends with a transpose, and gains by it; None where none
    has."""
    side_by_side: Callable[[Dispatch], bool] | None = None
    """Whether every target has a kernel for small dispatches side by side; None where none has."""
    partition: Callable[[Graph], Mapping[str, Partition]] | None = None
    """The regions that devices take of a graph, by device; None where no device takes any."""
    check_indices: bool = True
    """Whether calls check that indices are in range."""
    max_bindings: int = 16
    """Buffers that a dispatch may have on every target."""
    operand_alignment: int = ALIGNMENT
    """Bytes of which the address of every operand is a multiple on some target."""
    quantisation: Quantisation | None = None
    """How the weights of products are stored, if not as the model has them."""
    round_few_rows: bool = False
    """Whether only few rows are rounded to bytes where that is asked for: all targets asked for are GPUs."""
    shared: frozenset[str] = frozenset()
    """Keys of the constants that other methods of the model read too."""
    regions: bool = False
    """Whether a target's backend compiles regions."""
    one_launch: bool = False
    """Whether all targets asked for run dispatches of few rows in one launch (persistent kernels)."""


CANONICALISE = Fixpoint(
    (
        # Reshapes that do nothing are in the way of every pattern below.
        simplify_views,
        # Smaller bodies: indices become plain, conditions constant, operands disappear.
        simplify,
        # Of what is then left, conditions on computed indices.
        settle_indices,
        # Plain indices make gathers ordinary reads, through which copies can be seen.
        affine_gathers,
        read_through_copies,
        read_through_joins,
        # What now depends on constants or indices alone is computed here or in its readers.
        inline_generated,
        fold_constants,
        # Last in a round: the passes above leave equal ops and ops that nothing reads.
        eliminate_common,
        eliminate_dead,
    ),
    name="canonicalise",
)
"""Towards the canonical form: index maps instead of copies, constants folded, bodies small."""


def pipeline(settings: PipelineSettings | None = None) -> tuple[Step, ...]:
    """The steps of a compilation in order. A step whose ``when`` does not hold is passed over."""
    s = settings or PipelineSettings()
    bf16 = s.precision == "bf16"
    attention_workgroups = s.attention_workgroups
    buffer_limit, limited_target = s.buffer_limit or (0, "")
    steps: tuple[Step, ...] = (
        # -- Lowering: Generic, Reshape, Scatter, Sort, Scan and Assert are left of the op set -----
        # Before anything reads through what asserts alone keep.
        PassStep(drop_index_asserts, when=not s.check_indices),
        # First: every pattern below knows a clamp by its maximum and minimum.
        PassStep(merge_masks),
        # After clamps are known; before products, whose padding is then that of bytes.
        PassStep(merge_byte_maps),
        # On roundings and their readers in one op each. Matrix units of GPUs take signed bytes as they are.
        PassStep(unsigned_bytes, when=not s.gpu),
        # Before anything is folded: folding and simplification would make floats of the stored integers.
        PassStep(quantised_products),
        # Before canonicalisation moves what widens bytes before the copies of them.
        PassStep(demote_integers),
        # Before anything is lowered, because what nothing reads would be lowered as well.
        PassStep(eliminate_dead),
        # Before lower_views: a slice or reshape that does nothing is recognised as an op, not as a Generic.
        PassStep(simplify_views),
        # Before canonicalisation, which then sees products and softmax as it sees any others.
        PassStep(lower_attention, required=True),
        PassStep(lower_views, required=True),
        # -- Canonical form ------------------------------------------------------------------------
        CANONICALISE,
        # On simple bodies, and before attention is recognised or split.
        PassStep(guard_rows),
        # On bodies that are simple and constants that are folded, and before passes that count readers.
        PassStep(settle_asserts),
        # On plain bodies, while indices are computed by ops of their own.
        PassStep(mark_unique_indices),
        # After eliminate_common, which makes one op of the masks of all layers.
        PassStep(inline_uniform),
        # On simple bodies, and before anything splits attention or gives its operands another layout.
        PassStep(unpack_states),
        # After canonicalisation, which leaves only those maps in memory that something gathers from.
        PassStep(inline_into_gathers),
        # Once copies are read through, and before products and the weights of these change their form.
        PassStep(read_chosen_matrices),
        # Before split_consumers: a transpose written by its producer leaves the loops of its readers whole.
        PassStep(permute_producers),
        PassStep(split_consumers),
        # Split loops and permuted producers leave copies that can now be read through …
        CANONICALISE,
        # … which leaves transposes with one reader, for their producers to write …
        PassStep(permute_producers),
        # … and the maps of these to be cleaned.
        CANONICALISE,
        # -- Products: in the canonical form a product, its scale and its shift stand next to each other
        # Before channels_last, so that a weight takes its scale before anything permutes it.
        PassStep(fold_scales),
        # Before attention is recognised, in whose kernel a scale of the scores costs nothing.
        PassStep(factor_scales),
        # Before channels_last: a window that reads its padding itself has one layout less to agree with.
        # Where GPUs take part they read it with what they stage.
        PassStep(partial(read_padding, stored_bytes=not s.gpu)),
        # Before folding: zero points leave sums over weights, which are constants.
        PassStep(demote_integers),
        PassStep(fold_constants),
        PassStep(read_bytes),
        # Once the sums over weights are constants, like biases and scales. Toolchains of regions know bytes
        # between layers as values.
        PassStep(partial(fold_requantisation, join=not s.regions)),
        # On plain reads, and behind all that knows sums as such; toolchains of regions do.
        PassStep(unroll_pairs, when=not s.regions),
        # Before channels_last, which considers the readers of a value: only real ones may count.
        PassStep(eliminate_dead),
        # -- Layout --------------------------------------------------------------------------------
        # CPUs and GPUs both want images channels-last, so the layout is one for all devices.
        PassStep(channels_last),
        # Rows of an image are strided in the layout: what lies between two reductions of them follows them.
        PassStep(order_rows),
        # Before horizontal fusion, after which a weight has no name of its own. Products of one value still
        # share what that is rounded to.
        PassStep(
            partial(quantise_weights, quantisation=s.quantisation, bf16=bf16, few_rows=s.round_few_rows),
            when=s.quantisation is not None,
        ),
        # Before lay_out_weights, because the weights of merged products are laid out as one.
        # For CPUs alone, weights that methods share stay in the mapped file, which has them one by one.
        PassStep(partial(fuse_horizontally, kept=frozenset() if s.gpu else s.shared)),
        # After horizontal fusion, so that an input shared by several products is rounded once.
        PassStep(demote_products, when=bf16),
        PassStep(eliminate_dead, when=bf16),
        # After every pass that replaces weights: a weight is laid out once, in its final type and shape.
        PassStep(partial(lay_out_weights, shared=s.shared)),
        # After the layout, which moves such dims; before attention is recognised.
        PassStep(read_through_unit_dims),
        # -- Parallelism: after the layout, which decides what a long line or a row of keys is -----
        # Where CPUs share the model, an attention stays whole for them.
        PassStep(
            partial(split_attention, workgroups=attention_workgroups or 1, one_launch=s.one_launch),
            attention_workgroups is not None,
        ),
        # Splitting an attention leaves its masks and sums over whole rows unread.
        PassStep(eliminate_dead, when=attention_workgroups is not None),
        # After split_attention, whose softmax would no longer be recognised in pieces.
        PassStep(split_reductions, when=s.gpu),
        # After the passes that look for the op behind a state.
        PassStep(guard_states, required=True),
        # Last of all on the Graph: sizes of constants are final.
        PassStep(
            partial(split_large_constants, limit=buffer_limit, device=limited_target),
            when=s.buffer_limit is not None,
        ),
        # -- Graph to DispatchGraph ----------------------------------------------------------------
        # Regions are chosen here, on the final Graph: fusion keeps to their borders.
        PassStep(
            partial(
                fuse,
                attention=s.fuse_attention,
                products=s.fuse_products,
                transposes=s.fuse_transposes,
                partition=s.partition,
                max_bindings=s.max_bindings,
            ),
            required=True,
        ),
        # -- Dispatches: what a kernel may do to its operands depends on who else reads them -------
        PassStep(partial(mark_packable, shared=s.shared)),
        # Other targets have one kernel for equal dispatches, whatever is constant.
        PassStep(mark_constants, when=s.one_launch),
        PassStep(mark_in_place),
        # Once it is known what is updated in place: a part of another value cannot be.
        PassStep(partial(write_joins, alignment=s.operand_alignment)),
        # Last: what is updated in place is decided for each dispatch alone.
        PassStep(
            partial(
                put_side_by_side,
                accepts=s.side_by_side or (lambda dispatch: False),
                max_bindings=s.max_bindings,
            ),
            when=s.side_by_side is not None,
        ),
    )
    return with_unique_names(steps)


def graph_steps(steps: Sequence[Step]) -> tuple[Step, ...]:
    """The part of a pipeline that takes a Graph to a Graph: all before fusion."""
    return tuple(steps[: _index(steps, "fuse")])


def sharing_steps(steps: Sequence[Step]) -> tuple[Step, ...]:
    """The part of a pipeline before the first pass that has to know which constants methods share."""
    first = ("fuse_horizontally", "lay_out_weights", "fuse")
    return tuple(steps[: min(_index(steps, name) for name in first)])


def fusion_steps(steps: Sequence[Step]) -> tuple[Step, ...]:
    """The part of a pipeline from fusion on."""
    return tuple(steps[_index(steps, "fuse") :])


def canonical_steps() -> tuple[Step, ...]:
    """The part of the pipeline that brings an imported graph to the canonical form."""
    steps = pipeline()
    return steps[: _index(steps, "canonicalise.3") + 1]


def quantisable_steps() -> tuple[Step, ...]:
    """The part of the pipeline that brings an imported graph to the form in which it is quantised: canonical,
    with scales in weights."""
    steps = pipeline()
    return (*steps[: _index(steps, "fold_scales") + 1], PassStep(eliminate_dead))


def _index(steps: Sequence[Step], name: str) -> int:
    return next((i for i, step in enumerate(steps) if step.name == name), len(steps))
