"""The plan: everything the runtime needs to run a model, as plain data.

The compiler writes it, the artifact stores it as JSON, the runtime reads it. Sizes, offsets, grids and
params are ints or dim expressions; the runtime evaluates them once per set of input shapes, records
command buffers, and replays them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mansard.dims import Dim, DimLike, to_expr
from mansard.dtypes import DType
from mansard.plan.constraints import ShapeConstraint
from mansard.plan.interface import Interface

FORMAT_VERSION = 2
"""Of artifacts. 2: executables, with the contracts of their kernels, are an entry beside the plan."""


@dataclass(frozen=True)
class TensorSpec:
    """An input or output of the model, in call order. ``value`` is its `ValueSpec` id."""

    name: str
    dtype: DType
    shape: tuple[DimLike, ...]
    value: int


@dataclass(frozen=True)
class WeightSpec:
    """Constant data: ``entry`` names the tensor in the artifact's weights file."""

    entry: str
    dtype: DType
    shape: tuple[int, ...]
    source: str = ""
    """The parameter's name in the user's model, for reports."""


@dataclass(frozen=True)
class ValueSpec:
    """A dense buffer the plan names.

    ``kind`` is input, output, constant, transient or state. ``device`` is the device slot whose
    kernels use it; a value used on several devices has one ValueSpec per device, joined by
    `TransferStep` (constants simply have one per device). ``shared`` asks for host-visible
    memory (it crosses devices). ``first`` and ``last`` are the *epochs* of its device's queue (counted
    up at every barrier and segment) between which a transient must stay intact, inclusive; uses by
    other devices are already accounted for. Two transients may share memory when their epochs do not
    overlap: a barrier is then between them. With ``part_of`` it is no memory of its own but a part of
    another value of the device, from byte ``part_offset`` on: a result that several devices make in parts.
    """

    id: int
    name: str
    kind: str
    device: int
    bytes: DimLike
    weight: int | None = None
    shared: bool = False
    first: int = 0
    last: int = 0
    part_of: int | None = None
    part_offset: DimLike = 0


@dataclass(frozen=True)
class BindingSpec:
    """A kernel argument: a value and a byte offset into it."""

    value: int
    offset: DimLike = 0


@dataclass(frozen=True)
class DispatchStep:
    """Run a kernel. ``executable`` indexes `DeviceProgram.executables`."""

    executable: int
    entry: str
    bindings: tuple[BindingSpec, ...]
    params: tuple[DimLike, ...]
    grid: tuple[DimLike, DimLike, DimLike]
    label: str
    location: str = ""


@dataclass(frozen=True)
class TransferStep:
    """Make ``target`` (on this device) hold what ``source`` (on another) holds.

    When both devices can use one memory the runtime gives both values the same memory and nothing
    is copied; otherwise this device, or the one named by ``executor``, copies ``bytes``. With ``offset``
    that is the part of ``source`` from that byte on.
    """

    source: int
    target: int
    bytes: DimLike
    label: str = "transfer"
    offset: DimLike = 0


@dataclass(frozen=True)
class BarrierStep:
    """Order the steps before it, and their writes, before the steps after it."""


@dataclass(frozen=True)
class LoadStep:
    """Bring a program of the device's area (`DeviceProgram.area_bytes`) into its memory ahead of the
    dispatches that run it: from here on, while what is before it in the queue may still run, there is memory
    for it."""

    executable: int
    bytes: int
    label: str


@dataclass(frozen=True)
class EvictStep:
    """A program of the area is done with: the next one that is loaded gets its memory."""

    executable: int
    label: str


Step = DispatchStep | TransferStep | BarrierStep | LoadStep | EvictStep


@dataclass(frozen=True)
class Segment:
    """Steps of one queue between waits for other queues: what is submitted as one unit.

    ``wait`` lists (device slot, segment number) that must have completed.
    """

    wait: tuple[tuple[int, int], ...]
    steps: tuple[Step, ...]


@dataclass(frozen=True)
class BindingContract:
    """What a kernel accesses of one binding: of its first ``bytes`` any, and none beyond them."""

    bytes: DimLike
    writes: bool = False
    """Whether it writes them, all of them in a launch."""


@dataclass(frozen=True)
class KernelContract:
    """The launch that a kernel was compiled for, and what it accesses then.

    All are functions of the plan's dims. A step of a plan may launch the kernel with these params and on this
    grid only, over values that hold these bytes (`mansard.plan.contracts`): so no plan, however wrong, makes
    a sound kernel leave its buffers, or run longer than its sizes say.
    """

    bindings: tuple[BindingContract, ...]
    params: tuple[DimLike, ...]
    grid: tuple[DimLike, DimLike, DimLike]
    in_place: tuple[int, ...] = ()
    """Bindings that may be in the memory of a written one; code assumes that no others are."""


@dataclass(frozen=True)
class ExecutableRef:
    """A compiled blob in the artifact: ``entry`` is its file, the rest mirrors ExecutableSpec."""

    entry: str
    format: str
    target: str
    requires: tuple[str, ...]
    kernels: tuple[tuple[str, int, int, tuple[int, int, int], int], ...]
    """name, bindings, params, workgroup, code offset of each entry point."""
    contracts: tuple[KernelContract, ...] = ()
    """One for each of ``kernels``, in their order. Every executable of an artifact has them; in a plan that
    was put together in memory they may be left out, and its steps are then not compared with them."""


@dataclass(frozen=True)
class DeviceProgram:
    """What one device slot runs: the devices it is for, the code to load, and the segments of its queue."""

    name: str
    """The name the user compiled for, such as ``cpu`` or ``vulkan``."""
    driver: str
    target: str
    executables: tuple[ExecutableRef, ...]
    segments: tuple[Segment, ...]
    product_names: tuple[str, ...] = field(default=(), metadata={"formerly": "made_for"})
    """Parts of the names of devices that the target means: on these, the variant is taken before others."""
    late_binding: bool = False
    """Whether such devices take buffers at submission (`Capabilities.late_binding`), for predictions without
    the device; False in a plan made before this was kept."""
    area_bytes: int = 0
    """Bytes of the device's memory in which the ``swapped`` executables take turns; the others are in its
    memory as long as the model is loaded."""
    swapped: tuple[int, ...] = ()
    """Executables that are in the device's memory only while they are needed, by number."""


@dataclass(frozen=True)
class AssertSpec:
    """A value that the host checks: an input before the call starts, others when it ends.

    Without ``limits`` the value is a bool tensor, and ``message`` says what does not hold where an element is
    false. With ``limits`` (low, high) it holds integers of ``dtype``, indices of an op that ``message``
    names, in ``low … high - 1``.
    """

    value: int
    message: str
    location: str = ""
    limits: tuple[DimLike, DimLike] | None = None
    dtype: DType = DType.BOOL


@dataclass(frozen=True)
class Decision:
    """Why a dispatch runs where it runs (`mansard explain`).

    ``costs`` maps each device name to its predicted milliseconds, or to the reason it was refused.
    """

    dispatch: str
    ops: str
    device: str
    reason: str
    costs: Mapping[str, float | str] = field(default_factory=dict)
    bytes: DimLike = 0
    operations: DimLike = 0
    location: str = ""
    dtype: str = ""
    """The element type whose rate bounds the operations."""
    other_operations: DimLike = field(default=0, metadata={"formerly": "beside"})
    """The part of ``operations`` outside contractions; 0 without a contraction."""
    depth: DimLike = 0
    """Length of the deepest contraction's reduction; 0 without a contraction."""
    kind: str = ""
    """The kind of work (`mansard.placement.kinds`)."""


@dataclass(frozen=True)
class Rejected:
    """A placement that was considered beside the chosen one, and what it would cost."""

    name: str
    """What sets it apart, such as ``with swapping``."""
    cost: float | str
    """As `Prediction.cost_ms`, or why there is no such placement."""
    loaded_bytes: int = 0
    """Of programs that it would load during a call."""

    def __str__(self) -> str:
        """A phrase for people."""
        cost = self.cost if isinstance(self.cost, str) else f"{self.cost:.3f} ms"
        loads = f" and {self.loaded_bytes} bytes of programs loaded" if self.loaded_bytes else ""
        return f"{self.name}: {cost}{loads}"


@dataclass(frozen=True)
class Prediction:
    """What placement expects of a call, by its cost model; times in milliseconds.

    ``cost_ms`` is what was minimised: the latency, or the busiest device's time for throughput. No placement
    costs less than ``bound_ms``, as far as the model goes. ``method`` says how the placement was found.
    """

    latency_ms: float
    objective: str
    cost_ms: float
    bound_ms: float
    method: str
    copied_bytes: int = 0
    """Of all copies, those of inputs and outputs included, with dims at a representative size."""
    starts_ms: tuple[float, ...] = ()
    """When each dispatch starts, in the order of the plan's decisions."""
    loaded_bytes: int = 0
    """Of programs that are loaded during a call, since the device does not hold all of them."""
    rejected: tuple[Rejected, ...] = ()
    """Other placements that were considered, as the one with swapping, or without."""

    @property
    def gap(self) -> float:
        """The most by which a better placement could cost less, as a part of the bound."""
        return self.cost_ms / self.bound_ms - 1 if self.bound_ms > 0 else 0.0

    def __str__(self) -> str:
        """A line for people."""
        text = f"predicted latency: {self.latency_ms:.3f} ms"
        if self.objective != "latency":
            text += f"; {self.objective}: {self.cost_ms:.3f} ms a call"
        copies = f"; {self.copied_bytes} bytes are copied" if self.copied_bytes else ""
        copies += f"; {self.loaded_bytes} bytes of programs are loaded" if self.loaded_bytes else ""
        bound = f"no placement is below {self.bound_ms:.3f} ms (gap {100 * self.gap:.1f} %, {self.method})"
        return "; ".join([f"{text}{copies}", *(f"rejected {each}" for each in self.rejected), bound])


@dataclass(frozen=True)
class SplitPiece:
    """One device's piece of a divided dispatch: its label, and those of the copies made for it alone."""

    device: int
    label: str
    copies: tuple[str, ...] = ()


@dataclass(frozen=True)
class SplitSpec:
    """Dispatches that are divided over devices in the same way.

    ``sizes`` are the extents of their pieces along the divided dim of ``total``: symbols of the plan that no
    input binds, and for the last piece what they leave. The runtime chooses them for every call, within
    their contracts; ``initial`` is the share of each piece that the compiler expects to be best.
    ``dispatches`` lists the pieces of every dispatch, in the order of ``sizes``.
    """

    dim: str
    """The divided dim for people: rows, columns, or batch."""
    total: int
    sizes: tuple[DimLike, ...]
    initial: tuple[int, ...]
    dispatches: tuple[tuple[SplitPiece, ...], ...]


@dataclass(frozen=True)
class Plan:
    """A compiled model."""

    name: str
    dims: tuple[Dim, ...]
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    values: tuple[ValueSpec, ...]
    weights: tuple[WeightSpec, ...]
    devices: tuple[DeviceProgram, ...]
    states: tuple[tuple[int, int], ...] = ()
    """(value on entry, value on exit) of each state; equal ids mean updated in place."""
    asserts: tuple[AssertSpec, ...] = ()
    constraints: tuple[ShapeConstraint, ...] = ()
    """Relations between the dims that inputs bind, checked before a call starts."""
    decisions: tuple[Decision, ...] = ()
    info: Mapping[str, str] = field(default_factory=dict)
    """Versions and options of the compilation, for people."""
    variants: tuple[Plan, ...] = ()
    """The same model for other devices of the same driver, the best first. Their decisions and
    info are this plan's."""
    prediction: Prediction | None = None
    """None in a plan made before predictions were kept."""
    splits: tuple[SplitSpec, ...] = ()
    methods: Mapping[str, Plan] = field(default_factory=dict)
    """Further entry points of the model, by name: plans for the same devices, which share weights (of equal
    entry) and states (of equal name) with this one."""
    interface: Interface | None = None
    """How the model is called in its framework; None: with the inputs, in order."""

    @property
    def computed_asserts(self) -> tuple[AssertSpec, ...]:
        """The asserts of values that devices compute. Those of inputs are checked before a call starts."""
        inputs = {spec.value for spec in self.inputs}
        return tuple(check for check in self.asserts if check.value not in inputs)

    @property
    def chosen_dims(self) -> frozenset[str]:
        """The names of dims that the runtime chooses (`splits`); inputs bind the others."""
        sizes = [to_expr(size) for split in self.splits for size in split.sizes]
        return frozenset(symbol.name for size in sizes for symbol in size.symbols())

    def with_variants(self) -> tuple[Plan, ...]:
        """This plan and its variants, the best first."""
        return (self, *self.variants)

    def all_plans(self) -> tuple[Plan, ...]:
        """The plans of every method, each with its variants."""
        return (
            *self.with_variants(),
            *(p for method in self.methods.values() for p in method.with_variants()),
        )
