"""The compiler half of a driver: what entry points of ``mansard.targets`` name.

A `Backend` answers two questions about every dispatch: whether a target can run it, and with which
executable. How it gets there is its own business: `mansard.codegen.generated` schedules dispatches into
kernels and generates code, others call functions of a library. Devices whose toolchain compiles subgraphs
take *regions* of the graph before it is fused (`Backend.partition`), each of which becomes one step of the
plan.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from mansard.analysis.attention import AttentionForm
from mansard.codegen.kernel_target import KernelTarget
from mansard.codegen.parameters import Parameters
from mansard.dims import DimLike
from mansard.errors import CodegenError
from mansard.hal.device import DeviceInfo
from mansard.hal.executable import ExecutableSpec
from mansard.ir.dispatch import Dispatch
from mansard.ir.graph import Graph
from mansard.ir.panels import Panels
from mansard.ir.region import Partition, constant_bytes
from mansard.targets.profile import DeviceProfile, default_profile


@dataclass(frozen=True, eq=False)
class CompiledDispatch:
    """An executable with one entry point, and what a launch of it needs.

    Its bindings are the dispatch's inputs and outputs in order. Launched with ``params`` on ``grid``, code
    accesses no byte beyond them, packed ones as ``packed`` says: that becomes the kernel's contract, which
    every plan is held to (`mansard.plan.plan.KernelContract`).
    """

    spec: ExecutableSpec
    params: tuple[DimLike, ...] = ()
    """The integer parameters of a launch."""
    grid: tuple[DimLike, DimLike, DimLike] = (1, 1, 1)
    packed: Mapping[int, Panels] = field(default_factory=dict)
    """The layout in which the entry point reads inputs (by position) that the dispatch allows to be
    packed."""
    parameters: Parameters | None = None
    """The schedule parameters asked for; None: the default ones."""

    @property
    def name(self) -> str:
        """The entry point's name."""
        return self.spec.entries[0].name


class Backend(abc.ABC):
    """Compiles dispatches for one family of targets. ``name`` is the driver's name.

    Methods are called from several threads at the same time.
    """

    name: str
    late_binding: bool = False
    """Whether the driver's devices take buffers at submission (`Capabilities.late_binding`): the caller's
    arrays then need no copy, which predictions of memory take into account without a device."""

    swaps_programs: bool = False
    """Whether programs of regions can take turns in the memory of the driver's devices
    (`Capabilities.swaps_programs`): then a model may have more of them than fit."""

    region_format: str = ""
    """The executable format of regions, where the backend compiles them."""

    # Targets --------------------------------------------------------------------------------
    @abc.abstractmethod
    def parse_target(self, text: str) -> KernelTarget:
        """Read a target text, ``NAME`` or ``NAME:CPU+feature`` …; raises CodegenError naming what is known.

        The driver's name alone stands for this machine (CPU) or a safe baseline (GPU).
        """

    def describe_device(self, device: DeviceInfo) -> str:
        """The target text for a device that is present: by default what the device reports."""
        return device.target

    def device_target(self, device: DeviceInfo) -> KernelTarget:
        """The target to compile for when a device that is present is asked for by its name."""
        return self.parse_target(self.describe_device(device))

    def stands_for(self, target: KernelTarget, device: DeviceInfo) -> bool:
        """Whether a target means a device that is present: kernels tuned on the device are used for it."""
        return target == self.device_target(device)

    def hint(self, device: DeviceInfo) -> str:
        """The ``--target`` with which another machine compiles for a device of this one."""
        return self.describe_device(device)

    def product_names(self, text: str) -> tuple[str, ...]:
        """Parts of the product names of the devices a target stands for; empty where it stands for none in
        particular."""
        return ()

    def profile(self, text: str, device: DeviceInfo | None) -> DeviceProfile:
        """The rates to place by, for a target text and the device, where one is present: by default those of
        its kind."""
        return default_profile(device.kind if device is not None else "")

    def largest_buffer(self, target: KernelTarget, device: DeviceInfo | None) -> int | None:
        """Bytes of the largest buffer a kernel can use; larger weights are split. None: as much as there is
        memory. ``device`` is the one compiled for, where it is present."""
        return None

    # Graphs ---------------------------------------------------------------------------------
    def takes_attention(self, form: AttentionForm, target: KernelTarget) -> bool:
        """Whether an attention may become one dispatch; it does where all targets agree."""
        return form.partial is None

    def fused_products(self, dispatch: Dispatch, target: KernelTarget) -> int | None:
        """Bytes that one kernel for several products, or for one with what computes its rows, reads more than
        kernels of their own would; None, the default, where there is no such kernel."""
        return None

    def stores_transposed(self, dispatch: Dispatch, target: KernelTarget) -> bool:
        """Whether a kernel may store its result in the order of a transpose, the last op of ``dispatch``; by
        default none does."""
        return False

    def takes_parts(self, dispatch: Dispatch, target: KernelTarget) -> bool:
        """Whether one kernel may compute the `Dispatch.parts` of a dispatch; by default none does."""
        return False

    def partition(self, graph: Graph, target: KernelTarget) -> Partition | None:
        """The regions of a canonical graph that a target can run as one step each, and why other ops are in
        none; None, the default, for a device that takes dispatches alone.

        ``target.memory`` are the bytes that a model may take of the device's memory: where regions have more
        constants in all, smaller ones can take turns there (`mansard.regions.partition.Limits`).

        Regions are disjoint, and convex: no path between two ops of one leads through ops outside. Placement
        puts a region on the device as a whole, or all of its dispatches elsewhere.
        """
        return None

    def estimate_region(self, region: Graph, target: KernelTarget) -> float | None:
        """Predicted seconds of a run of a region; None: the cost model's figure for its dispatches."""
        return None

    def region_bytes(self, region: Graph, target: KernelTarget) -> int:
        """Bytes of the device's memory that a region's program takes while it is loaded; by default those of
        the constants that it embeds."""
        return constant_bytes(region)

    def describe_region(self, region: Graph, target: KernelTarget) -> str:
        """What `explain` says of a region beside its ops, such as the cycles that the toolchain expects."""
        return ""

    def compile_region(self, region: Graph, target: KernelTarget) -> bytes:
        """The code of a region, of format ``region_format``, whose entry point is called ``region.name``.

        Its bindings are the inputs of ``region``, then its constants unless the partition embeds them, then
        its outputs, no byte beyond which it accesses; its params the values of the region's symbols in the
        order of their names (`mansard.ir.region.symbols`). Any exception becomes a CompileError that names
        the backend.
        """
        raise CodegenError(f"{self.name} compiles no regions")

    # Dispatches -----------------------------------------------------------------------------
    @abc.abstractmethod
    def refuses(self, dispatch: Dispatch, target: KernelTarget) -> str | None:
        """Why a target cannot run a dispatch; None when it can. Placement shows the reason."""

    @abc.abstractmethod
    def compile_dispatch(
        self, dispatch: Dispatch, target: KernelTarget, name: str, parameters: Parameters | None = None
    ) -> CompiledDispatch:
        """The executable of a dispatch that is not refused, with an entry point called ``name``.

        ``parameters`` are one of `candidates`; None stands for the first. Raises CodegenError when the target
        lacks what the kernel of these parameters needs.
        """

    def candidates(self, dispatch: Dispatch, target: KernelTarget) -> Sequence[Parameters]:
        """Parameters that give the same results at different speeds, the default first: what tuning tries."""
        return (Parameters(),)

    def join(self, specs: Sequence[ExecutableSpec]) -> list[ExecutableSpec]:
        """Executables of one entry point each, merged as a device loads them best: by default unmerged."""
        return list(specs)

    def listings(
        self, compiled: Sequence[tuple[Dispatch, CompiledDispatch]], target: KernelTarget
    ) -> Mapping[str, str]:
        """Readable forms of compiled dispatches for dumps, by the name of the form; by default none."""
        return {}
