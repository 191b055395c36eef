"""SPIR-V modules as compute pipelines, and PTX modules beside them."""

from __future__ import annotations

import ctypes
import os
import re
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mansard.drivers.vulkan import vk
from mansard.drivers.vulkan.instance.context import DeviceContext
from mansard.drivers.vulkan.instance.device_setup import DeviceSetup
from mansard.drivers.vulkan.instance.results import check, created
from mansard.drivers.vulkan.shaders.abi import (
    BODY_FORMAT,
    DESCRIPTORS,
    FORMATS,
    PTX_FORMAT,
    ShaderModule,
    body_parts,
    modules_of,
    ptx_parts,
)
from mansard.drivers.vulkan.shaders.feedback import Feedback
from mansard.drivers.vulkan.shaders.persistent import Body, PersistentKernels
from mansard.drivers.vulkan.shaders.pipeline_cache import PipelineCache
from mansard.drivers.vulkan.shaders.ptx import PtxKernels, PtxModules, ptx_entry_points
from mansard.drivers.vulkan.shaders.spirv import entry_points
from mansard.errors import ArtifactError, DeviceError, TargetMismatchError
from mansard.hal.executable import Build, EntryPoint, Executable, ExecutableSpec
from mansard.hal.service import Finalizer

if TYPE_CHECKING:
    from concurrent.futures import Executor, Future

_LIMIT = re.compile(r"(\w+)\s*>=\s*(\d+)")
_SUBGROUP = re.compile(r"subgroup_size_(\d+)")


def unmet_requirements(
    requires: Iterable[str], entries: Iterable[EntryPoint], setup: DeviceSetup
) -> list[str]:
    """What kernels need and the device lacks, each as a sentence part; empty when it fits.

    A requirement is a named feature (``float16``) or a limit (``workgroup_invocations>=256``).
    """
    missing = []
    for requirement in requires:
        limit = _LIMIT.fullmatch(requirement)
        if limit is None:
            if requirement not in setup.feature_names:
                missing.append(f"needs {requirement}, which the device lacks")
        elif setup.limits.get(limit[1], 0) < int(limit[2]):
            missing.append(
                f"needs {requirement}, the device has {setup.limits.get(limit[1], 'no such limit')}"
            )
    for entry in entries:
        x, y, z = entry.workgroup
        if x * y * z > setup.limits["workgroup_invocations"]:
            missing.append(f"{entry.name} has workgroups of {x * y * z}, the device's limit is "
                           f"{setup.limits['workgroup_invocations']}")  # fmt: skip
        for axis, extent in zip("xyz", entry.workgroup, strict=True):
            max_extent = setup.limits[f"workgroup_size_{axis}"]
            if extent > max_extent:
                missing.append(
                    f"{entry.name} has workgroups of {extent} in {axis}, the device's limit is {max_extent}"
                )
    return missing


def asked_subgroup_size(requires: Iterable[str], setup: DeviceSetup) -> int | None:
    """The size of subgroups that a module is made for, where the device has several and must be told."""
    if setup.limits["min_subgroup_size"] == setup.limits["max_subgroup_size"]:
        return None
    sizes = [int(match[1]) for requirement in requires if (match := _SUBGROUP.fullmatch(requirement))]
    return sizes[0] if sizes else None


@dataclass(frozen=True)
class PipelineLayout:
    """Handles of a pipeline layout and of the descriptor set layout in it, if any."""

    pipeline: int
    set: int = 0
    descriptors: bool = False
    pushed: bool = False


@dataclass(frozen=True)
class Modules:
    """The modules of an executable that a device can load."""

    spirv: ShaderModule | None
    ptx: ShaderModule | None = None
    body: ShaderModule | None = None
    """The PTX that persistent kernels run."""


class Pipeline:
    """One entry point, ready to be dispatched."""

    def __init__(self, handle: int, layout: PipelineLayout, entry: EntryPoint, build: Build) -> None:
        self.handle = handle
        """The VkPipeline; 0 for a PTX kernel alone."""
        self.layout = layout.pipeline
        self.entry = entry
        self.builds: tuple[Build, ...] = (build,)
        self.descriptors = layout.descriptors
        """Whether it takes descriptors instead of an argument table."""
        self.pooled_set = 0 if layout.pushed else layout.set
        """The layout of the sets it needs from a pool; 0 when descriptors are pushed or there are none."""
        self.function = 0
        """The function of the PTX kernel; 0 when there is none."""
        self.threads = 0
        """Invocations of a block of the PTX kernel."""
        self.body: Body | None = None
        """What a persistent kernel runs for a dispatch, where it can."""

    def runs_ptx(self, params: Sequence[int]) -> bool:
        """Whether the PTX kernel runs for these parameters: beside another the last of them says so."""
        return bool(self.function) and (not self.handle or params[-1] != 0)


class VulkanExecutable(Executable):
    """A shader module's pipelines, which the driver compiles in `build`. They are destroyed once no command
    buffer holds them any more."""

    def __init__(self, loader: ExecutableLoader, spec: ExecutableSpec, modules: Modules) -> None:
        self.loader = loader
        self.spec = spec
        self.entries = {entry.name: entry for entry in spec.entries}
        self.modules: Modules | None = modules
        self._pipelines: dict[str, Pipeline] = {}
        self._building: Future[None] | None = None
        self._handles: list[int] = []
        self._ptx_modules: list[int] = []
        self._finalizer = Finalizer(self, loader.release, self._handles, self._ptx_modules)

    @property
    def pipelines(self) -> Mapping[str, Pipeline]:
        """The pipelines by entry point, once the driver has compiled them; none of a closed executable.
        Raises as `wait`."""
        self.wait()
        return self._pipelines

    def build(self) -> None:
        """Let the driver compile the modules. Raises DeviceError when it refuses one."""
        modules, self.modules = self.modules, None
        if modules is not None and self.spec.entries:
            self._pipelines = self.loader.build(self.spec, modules, self._handles, self._ptx_modules)
            self.builds = tuple(build for pipeline in self._pipelines.values() for build in pipeline.builds)

    def build_in(self, pool: Executor, ended: Callable[[], None]) -> Future[None]:
        """`build` in a thread of a pool, and then ``ended``; `wait` waits for both."""

        def build() -> None:
            try:
                self.build()
            finally:
                ended()

        self._building = pool.submit(build)
        return self._building

    def wait(self) -> None:
        """See `Executable.wait`."""
        if self._building is not None:
            if self._building.cancelled():
                raise DeviceError("the Vulkan device was closed before its driver compiled the code")
            self._building.result()

    def close(self) -> None:
        """Unload the code, once the driver has compiled it. Closing twice is allowed; nothing that uses it
        may be in flight."""
        if self._building is not None:
            if not self._building.cancel():
                self._building.exception()  # waits
            self._building = None
        self._finalizer.now()
        self._pipelines = {}


class ExecutableLoader:
    """Makes the executables of one device. Thread-safe."""

    def __init__(self, context: DeviceContext) -> None:
        self._context = context
        self._lock = threading.Lock()
        self._layouts: dict[tuple[bool, int, int], PipelineLayout] = {}
        self._live: set[int] = set()
        self._cache = PipelineCache(context)
        self._ptx = PtxModules(context)
        self.persistent = PersistentKernels(self._ptx)
        self._closed = False
        self._building: list[Future[None]] = []
        self.destroyed = 0
        """Pipelines that were destroyed so far; the device sets it back."""

    def load_all(self, specs: Sequence[ExecutableSpec]) -> list[VulkanExecutable]:
        """As `load` for each, except that several are compiled in threads, since drivers compile a pipeline
        with one: `VulkanExecutable.wait` raises what the driver refuses. All or none are loaded; raises the
        error of the first spec that has one."""
        loaded: list[VulkanExecutable] = []
        with ExitStack() as undo:
            for spec in specs:
                executable = VulkanExecutable(self, spec, self._checked(spec))
                undo.callback(executable.close)
                loaded.append(executable)
            self._build_all(loaded)
            undo.pop_all()
        return loaded

    def load(self, spec: ExecutableSpec) -> VulkanExecutable:
        """Check a spec against the device and make its pipelines.

        Raises TargetMismatchError for a foreign format or an unmet requirement, ArtifactError for code
        that is no SPIR-V or PTX or lacks an entry point, DeviceError when the driver refuses it.
        """
        (executable,) = self.load_all([spec])
        return executable

    def _build_all(self, executables: Sequence[VulkanExecutable]) -> None:
        workers = min(len(executables), len(os.sched_getaffinity(0)))
        if workers <= 1:
            for executable in executables:
                executable.build()
            if executables:
                self._cache.save()
            return
        from concurrent.futures import ThreadPoolExecutor  # a single executable does without

        pool = ThreadPoolExecutor(workers, "mansard pipelines")
        left = len(executables)

        def ended() -> None:
            nonlocal left
            with self._lock:
                left -= 1
                last = left == 0
            if last:
                self._cache.save()

        with self._lock:
            self._building = [building for building in self._building if not building.done()]
            self._building += [executable.build_in(pool, ended) for executable in executables]
        pool.shutdown(wait=False)

    def _checked(self, spec: ExecutableSpec) -> Modules:
        """The modules of a spec that suit the device. Raises as `load`."""
        formats = (*FORMATS.values(), PTX_FORMAT, BODY_FORMAT)
        if spec.format not in formats:
            raise TargetMismatchError(f"a Vulkan device loads {', '.join(formats)}, not {spec.format!r}")
        ptx = body = None
        if spec.format == PTX_FORMAT:
            ptx, spirv = self._both(spec)
        elif spec.format == BODY_FORMAT:
            spirv, body = body_parts(spec)
            self._choose(spec, [spirv])
        else:
            spirv = self._choose(spec, modules_of(spec))
        names = {entry.name for entry in spec.entries}
        if spirv is not None and (absent := names - entry_points(spirv.code)):
            raise ArtifactError(f"the SPIR-V module has no entry point {', '.join(sorted(absent))}")
        if ptx is not None and (absent := names - ptx_entry_points(ptx.code)):
            raise ArtifactError(f"the PTX module has no entry point {', '.join(sorted(absent))}")
        if self._closed:
            raise DeviceError("the Vulkan device is closed")
        return Modules(spirv, ptx, body)

    def build(
        self, spec: ExecutableSpec, modules: Modules, handles: list[int], ptx_modules: list[int]
    ) -> dict[str, Pipeline]:
        """The pipelines of a spec, by entry point; what `release` has to destroy is added to ``handles`` and
        ``ptx_modules``, also where this fails. Raises DeviceError when the driver refuses a module."""
        kernels = None
        if modules.ptx is not None:
            kernels = self._ptx.load(modules.ptx, spec.entries)
            ptx_modules.append(kernels.module)
        pipelines = self._pipelines(modules.spirv, spec.entries) if modules.spirv is not None else {}
        handles.extend(pipeline.handle for pipeline in pipelines.values())
        if modules.body is not None:
            (pipeline,) = pipelines.values()
            pipeline.body = self._body(spec, modules.body)
        return _with_ptx(pipelines, kernels, spec.entries) if kernels is not None else pipelines

    def release(self, handles: Sequence[int], ptx_modules: Sequence[int] = ()) -> None:
        """Destroy pipelines, and PTX modules with their functions, unless that was done."""
        if sys.is_finalizing():  # the lock may be held by a thread that runs no more
            return
        for module in ptx_modules:
            self._ptx.release(module)
        with self._lock:
            for handle in handles:
                if handle in self._live:
                    self._live.remove(handle)
                    self._context.commands.vkDestroyPipeline(self._context.handle, handle, None)
                    self.destroyed += 1

    def close(self) -> None:
        """Destroy what is left, once nothing is compiled any more."""
        self._closed = True
        for building in [building for building in self._building if not building.cancel()]:
            building.exception()  # waits
        self.release(list(self._live))
        self._ptx.close()
        commands, device = self._context.commands, self._context.handle
        for layout in self._layouts.values():
            commands.vkDestroyPipelineLayout(device, layout.pipeline, None)
            if layout.set:
                commands.vkDestroyDescriptorSetLayout(device, layout.set, None)
        self._cache.close()

    def _choose(self, spec: ExecutableSpec, modules: Sequence[ShaderModule]) -> ShaderModule:
        """The first of an executable's modules whose requirements the device meets; raises
        TargetMismatchError."""
        refusals = []
        for module in modules:
            missing = unmet_requirements(module.requires, spec.entries, self._context.setup)
            if not missing:
                return module
            refusals.append("; ".join(missing))
        raise TargetMismatchError(f"the executable for {spec.target} {'; or it '.join(refusals)}")

    def _body(self, spec: ExecutableSpec, module: ShaderModule) -> Body | None:
        """The body of a kernel, on a device that can run it."""
        assert module.body is not None
        if unmet_requirements(module.requires, spec.entries, self._context.setup):
            return None
        return Body(module.code.rstrip(b"\0").decode("ascii"), module.threads, module.body)

    def _both(self, spec: ExecutableSpec) -> tuple[ShaderModule, ShaderModule | None]:
        """The PTX module and the SPIR-V module beside it; raises TargetMismatchError for unmet requirements
        of either."""
        ptx, spirv = ptx_parts(spec)
        requires = dict.fromkeys((*spec.requires, *(spirv.requires if spirv else ()), *ptx.requires))
        setup = self._context.setup
        missing = unmet_requirements(requires, spec.entries, setup)
        most = setup.limits["workgroup_invocations"]
        if ptx.threads > most:
            missing.append(f"has PTX kernels with blocks of {ptx.threads}, the device's limit is {most}")
        if missing:
            raise TargetMismatchError(f"the executable for {spec.target} {'; '.join(missing)}")
        if spirv is not None and not all(entry.params for entry in spec.entries):
            raise ArtifactError("no parameter says whether a kernel runs as SPIR-V or as PTX")
        return ptx, spirv

    def _pipelines(self, module_: ShaderModule, entries: tuple[EntryPoint, ...]) -> dict[str, Pipeline]:
        commands, device, code = self._context.commands, self._context.handle, module_.code
        words = (ctypes.c_uint32 * (len(code) // 4)).from_buffer_copy(code)
        info = vk.VkShaderModuleCreateInfo(codeSize=len(code), pCode=words)
        module = created(
            lambda out: commands.vkCreateShaderModule(device, ctypes.byref(info), None, out), "loading SPIR-V"
        )
        try:
            return self._compile(
                module,
                entries,
                module_.abi == DESCRIPTORS,
                asked_subgroup_size(module_.requires, self._context.setup),
            )
        finally:
            commands.vkDestroyShaderModule(device, module, None)

    def _compile(
        self, module: int, entries: tuple[EntryPoint, ...], descriptors: bool, subgroup: int | None
    ) -> dict[str, Pipeline]:
        layouts = [self._layout(entry, descriptors) for entry in entries]
        infos = (vk.VkComputePipelineCreateInfo * len(entries))(
            *(
                _pipeline_info(module, entry, layout.pipeline)
                for entry, layout in zip(entries, layouts, strict=True)
            )
        )
        size = vk.VkPipelineShaderStageRequiredSubgroupSizeCreateInfo(requiredSubgroupSize=subgroup or 0)
        for info in infos if subgroup else ():
            info.stage.pNext = ctypes.addressof(size)
            info.stage.flags |= vk.VK_PIPELINE_SHADER_STAGE_CREATE_REQUIRE_FULL_SUBGROUPS_BIT
        feedback = Feedback(infos)
        handles = (ctypes.c_uint64 * len(entries))()
        result = self._context.commands.vkCreateComputePipelines(
            self._context.handle, self._cache.handle, len(entries), infos, None, handles
        )
        self._live.update(handle for handle in handles if handle)
        try:
            check(result, f"compiling {', '.join(entry.name for entry in entries)}")
        except DeviceError:
            self.release([handle for handle in handles if handle])
            raise
        for entry, handle in zip(entries, handles, strict=True):
            self._context.name(vk.VK_OBJECT_TYPE_PIPELINE, handle, entry.name)
        builds = feedback.builds(entry.name for entry in entries)
        return {
            entry.name: Pipeline(handle, layout, entry, build)
            for entry, handle, layout, build in zip(entries, handles, layouts, builds, strict=True)
        }

    def _layout(self, entry: EntryPoint, descriptors: bool) -> PipelineLayout:
        """The layout for an entry's push constants and buffers; equal entries share one."""
        if descriptors:
            key = True, 8 * entry.params, entry.bindings
        else:
            key = False, entry.table_words * 8 if entry.table_in_push_constants else 8, 0
        with self._lock:
            if key not in self._layouts:
                self._layouts[key] = self._create_layout(*key)
            return self._layouts[key]

    def _create_layout(self, descriptors: bool, size: int, buffers: int) -> PipelineLayout:
        pushed = buffers <= self._context.setup.limits["push_descriptors"]
        set_layout = ctypes.c_uint64(self._create_set_layout(buffers, pushed) if buffers else 0)
        constants = vk.VkPushConstantRange(stageFlags=vk.VK_SHADER_STAGE_COMPUTE_BIT, offset=0, size=size)
        info = vk.VkPipelineLayoutCreateInfo(
            setLayoutCount=1 if buffers else 0,
            pSetLayouts=ctypes.pointer(set_layout),
            pushConstantRangeCount=1 if size else 0,
            pPushConstantRanges=ctypes.pointer(constants),
        )
        commands, device = self._context.commands, self._context.handle
        handle = created(
            lambda out: commands.vkCreatePipelineLayout(device, ctypes.byref(info), None, out),
            "creating a pipeline layout",
        )
        return PipelineLayout(handle, set_layout.value, descriptors, pushed)

    def _create_set_layout(self, buffers: int, pushed: bool) -> int:
        bindings = (vk.VkDescriptorSetLayoutBinding * buffers)(
            *(
                vk.VkDescriptorSetLayoutBinding(
                    binding=number,
                    descriptorType=vk.VK_DESCRIPTOR_TYPE_STORAGE_BUFFER,
                    descriptorCount=1,
                    stageFlags=vk.VK_SHADER_STAGE_COMPUTE_BIT,
                )
                for number in range(buffers)
            )
        )
        info = vk.VkDescriptorSetLayoutCreateInfo(
            flags=vk.VK_DESCRIPTOR_SET_LAYOUT_CREATE_PUSH_DESCRIPTOR_BIT_KHR if pushed else 0,
            bindingCount=buffers,
            pBindings=bindings,
        )
        commands, device = self._context.commands, self._context.handle
        return created(
            lambda out: commands.vkCreateDescriptorSetLayout(device, ctypes.byref(info), None, out),
            "creating a descriptor set layout",
        )


def _with_ptx(
    pipelines: dict[str, Pipeline], kernels: PtxKernels, entries: tuple[EntryPoint, ...]
) -> dict[str, Pipeline]:
    """Pipelines with the PTX kernels of the same entry points; without SPIR-V those alone."""
    joined = {}
    for entry, function, build in zip(entries, kernels.functions, kernels.builds, strict=True):
        pipeline = pipelines.get(entry.name)
        if pipeline is None:
            pipeline = Pipeline(0, PipelineLayout(0), entry, build)
        else:
            pipeline.builds += (build,)
        pipeline.function, pipeline.threads = function, kernels.threads
        joined[entry.name] = pipeline
    return joined


def _pipeline_info(module: int, entry: EntryPoint, layout: int) -> Any:
    stage = vk.VkPipelineShaderStageCreateInfo(
        stage=vk.VK_SHADER_STAGE_COMPUTE_BIT, module=module, pName=entry.name.encode()
    )
    return vk.VkComputePipelineCreateInfo(stage=stage, layout=layout, basePipelineIndex=-1)
