"""The compiler half of a backend: what `mansard.targets` entry points name."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from mansard.codegen.kernel import Kernel
from mansard.dtypes import DType
from mansard.errors import CodegenError
from mansard.hal.device import DeviceInfo
from mansard.hal.executable import ExecutableSpec
from mansard.targets.profile import DeviceProfile, default_profile

CHOOSES_SUBGROUPS = frozenset({"subgroup_size_control", "full_subgroups"})
"""What a device needs to run a kernel with subgroups of a size that the kernel asks for."""


@dataclass(frozen=True)
class MatrixShape:
    """One shape of matrices that a subgroup multiplies as a whole: ``c (m, n) += a (m, k) @ b (k, n)``."""

    m: int
    n: int
    k: int
    operand: DType
    """Element type of a and b."""
    accumulator: DType
    """Element type of c."""


@dataclass(frozen=True)
class KernelTarget:
    """What a schedule needs to know of a target to make a kernel for it."""

    name: str
    """The whole target, such as ``cpu:x86_64+avx2`` or ``vulkan:1.3``."""
    vector_bits: int
    """SIMD register width of a CPU; 0 where lanes are invocations (a GPU)."""
    index: DType
    """Default type of index arithmetic."""
    workgroup_invocations: int
    """Invocations to use in a workgroup (1 on a CPU)."""
    shared_memory_bytes: int
    features: frozenset[str] = frozenset()
    resident_invocations: int = 1 << 12
    """Invocations a GPU should be given at least: about half of what it holds at a time."""
    compute_units: int = 4
    """Cores of a GPU (each runs several workgroups at a time)."""
    subgroup: tuple[int, int] = (1, 128)
    """Least and greatest invocations of a subgroup; equal where the size is known."""
    matrices: tuple[MatrixShape, ...] = ()
    """Shapes that cooperative matrices of a subgroup may have."""

    @property
    def is_gpu(self) -> bool:
        """Whether workgroups have many invocations."""
        return self.vector_bits == 0

    @property
    def vector_registers(self) -> int:
        """Vector registers of a CPU: 32 with AVX-512, NEON or RVV, else 16."""
        return 32 if self.vector_bits >= 512 or self.features & {"neon", "v"} else 16

    def with_one_subgroup_size(self) -> KernelTarget:
        """The target for kernels that need to know the size of subgroups: with the least size where kernels
        may ask for one; itself where there is but one, or where none is known."""
        least, most = self.subgroup
        if least == most or not self.features >= CHOOSES_SUBGROUPS:
            return self
        return dataclasses.replace(self, subgroup=(least, least))

    def lanes(self, dtype: DType) -> int:
        """Vector lanes for an element type (1 on a GPU)."""
        return max(1, self.vector_bits // dtype.bits) if self.vector_bits else 1


class Backend(abc.ABC):
    """Turns kernels into executables for one family of targets. ``name`` is the driver's name."""

    name: str
    late_binding: bool = False
    """Whether the driver's devices take buffers at submission (`Capabilities.late_binding`): the caller's
    arrays then need no copy, which predictions of memory take into account without a device."""

    @abc.abstractmethod
    def parse_target(self, text: str) -> KernelTarget:
        """Understand ``cpu``, ``cpu:NAME+feature`` …; raises CodegenError naming what is known.

        The bare driver name means the device at hand (CPU) or a safe baseline (GPU).
        """

    def describe_device(self, device: DeviceInfo) -> str:
        """The target text for a device that is present: what the device says itself."""
        return device.target

    def hint(self, device: DeviceInfo) -> str:
        """What to give as ``--target`` on another machine to compile for a device of this one."""
        return self.describe_device(device)

    def profile(self, text: str, device: DeviceInfo | None) -> DeviceProfile:
        """The rates to place by, for a target text and the device present, if it is."""
        return default_profile(self.name, device.kind if device is not None else "")

    def made_for(self, text: str) -> tuple[str, ...]:
        """Parts of the names of the devices a target text is meant for; empty: it is not meant for any."""
        return ()

    def largest_buffer(self, text: str) -> int | None:
        """Bytes of one buffer on the devices of a target; None where memory alone limits them."""
        return None

    @abc.abstractmethod
    def compile_kernel(self, kernel: Kernel, target: KernelTarget) -> ExecutableSpec:
        """One kernel, alone in its executable. Threads call it at the same time."""

    def join(self, specs: Sequence[ExecutableSpec]) -> list[ExecutableSpec]:
        """Executables of one kernel each as a device should load them: here as they are."""
        return list(specs)

    def compile(self, kernels: Sequence[Kernel], target: KernelTarget) -> list[ExecutableSpec]:
        """Executables that together hold every kernel, by name, each once."""
        names = [k.name for k in kernels]
        if repeated := sorted({n for n in names if names.count(n) > 1}):
            raise CodegenError(f"kernel names are not unique: {', '.join(repeated)}")
        return self.join([self.compile_kernel(kernel, target) for kernel in kernels])

    @abc.abstractmethod
    def emit_text(self, kernels: Sequence[Kernel], target: KernelTarget) -> str:
        """The kernels in readable low-level form (LLVM IR, SPIR-V assembly), for dumps."""
