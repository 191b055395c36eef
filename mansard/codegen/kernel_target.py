"""What schedules and code generators know of a target: vector width, workgroups, memory, features."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from mansard.dtypes import DType

CHOOSES_SUBGROUPS = frozenset({"subgroup_size_control", "full_subgroups"})
"""Features with which a kernel may ask for subgroups of one size."""


@dataclass(frozen=True)
class MatrixShape:
    """One shape of cooperative matrices: ``c (m, n) += a (m, k) @ b (k, n)`` by a whole subgroup."""

    m: int
    n: int
    k: int
    operand: DType
    """Element type of a and b."""
    accumulator: DType
    """Element type of c."""


@dataclass(frozen=True)
class KernelTarget:
    """A parsed target text. Backends whose code is not generated from kernels need the name alone."""

    name: str
    """The whole target, such as ``cpu:x86_64+avx2`` or ``vulkan:1.3``; it parses to an equal target."""
    vector_bits: int = 0
    """SIMD register width of a CPU; 0 where lanes are invocations (a GPU)."""
    index: DType = DType.I64
    """Default type of index arithmetic."""
    workgroup_invocations: int = 1
    """Invocations to use in a workgroup (1 on a CPU)."""
    shared_memory_bytes: int = 0
    """On-chip memory of one workgroup."""
    features: frozenset[str] = frozenset()
    resident_invocations: int = 1 << 12
    """Invocations that keep a GPU busy: about half of what it holds at a time."""
    compute_units: int = 4
    """Cores of a GPU (each runs several workgroups at a time)."""
    subgroup: tuple[int, int] = (1, 128)
    """Minimum and maximum invocations of a subgroup; equal where the size is known."""
    matrices: tuple[MatrixShape, ...] = ()
    """Shapes that cooperative matrices of a subgroup may have."""
    max_bindings: int = 16
    """The most buffers of one dispatch."""
    max_workgroups: int = (1 << 31) - 1
    """Workgroups of one launch per axis of the grid."""
    loop_iterations: int | None = None
    """Loop iterations of one invocation, all loops together, after which the driver ends its loops; None: no
    limit."""
    memory_streams: int = 1
    """Streams side by side in which a CPU's core reads memory fastest."""
    slow_bf16_dots: bool = False
    """Whether a CPU takes as long for a sum of two products of bf16 as for four of f32."""
    memory: int | None = None
    """Bytes of the device's memory that a model may take, where regions of a graph are asked for; None: not
    known, or the host's."""

    @property
    def is_gpu(self) -> bool:
        """Whether workgroups have many invocations."""
        return self.workgroup_invocations > 1

    @property
    def operand_alignment(self) -> int:
        """Bytes of which the address of every operand of a kernel is a multiple: CPUs load whole cache lines
        at most, and Vulkan's ``minStorageBufferOffsetAlignment`` is up to 256."""
        return 64 if self.vector_bits else 256

    @property
    def vector_registers(self) -> int:
        """Vector registers of a CPU: 32 with AVX-512, NEON or RVV, else 16."""
        return 32 if self.vector_bits >= 512 or self.features & {"neon", "v"} else 16

    def with_one_subgroup_size(self) -> KernelTarget:
        """The target for kernels that need to know the subgroup size: with the minimum size where kernels may
        ask for one; itself where there is only one size, or where none is known."""
        lower, upper = self.subgroup
        if lower == upper or not self.features >= CHOOSES_SUBGROUPS:
            return self
        return dataclasses.replace(self, subgroup=(lower, lower))

    def lanes(self, dtype: DType) -> int:
        """Vector lanes for an element type (1 on a GPU)."""
        return max(1, self.vector_bits // dtype.bits) if self.vector_bits else 1
