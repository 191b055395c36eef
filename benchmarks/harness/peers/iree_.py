"""IREE: LLVM code for the host, run by its local-task device."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness.cases import Case, first
from benchmarks.harness.peers.base import Call, Peer, export, narrow

_FLAGS = (
    "--iree-hal-target-backends=llvm-cpu",
    "--iree-llvmcpu-target-cpu=host",
    "--iree-opt-level=O3",
    "--iree-llvmcpu-fail-on-out-of-bounds-stack-allocation=false",
)
# Convolutional networks run about twice as fast this way, and none slower.
_CHANNELS_LAST = (
    "--iree-preprocessing-pass-pipeline="
    "builtin.module(util.func(iree-preprocessing-convert-conv-to-channels-last))"
)


class Iree(Peer):
    name = "iree"
    packages = ("iree-base-compiler", "iree-base-runtime", "ml_dtypes")
    own_environment = True

    def imports(self) -> None:
        import iree.runtime  # noqa: F401
        import ml_dtypes  # noqa: F401

    def build(self, case: Case, module: Any, args: tuple[Any, ...], place: Path) -> None:
        from iree.compiler import ir
        from iree.compiler.extras.fx_importer import FxImporter

        program = export(module, args).run_decompositions(_decompositions())
        importer = FxImporter(context=ir.Context())
        importer.import_frozen_program(program)
        source = place / "model.mlirbc"
        with source.open("wb") as file:
            importer.module.operation.write_bytecode(file)
        del importer, program  # the compiler below needs the memory
        flags = list(_FLAGS)
        if args[0].ndim == 4:
            flags.append(_CHANNELS_LAST)
        if case.network == "qwen":
            # Small constants stay inside: the loader rejects eight-byte splats in parameter files.
            flags += [
                f"--iree-parameter-export=model={place / 'model.irpa'}",
                "--iree-parameter-export-minimum-size=65536",
            ]
        compiler = Path(sys.executable).parent / "iree-compile"
        subprocess.run([compiler, source, "-o", place / "model.vmfb", *flags], check=True)
        source.unlink()

    def files(self, case: Case, place: Path, work: Path) -> list[Path]:
        return [place / "model.vmfb", place / "model.irpa"]

    def load(self, case: Case, place: Path, work: Path, arrays: list[np.ndarray], threads: int) -> Call:
        from iree import runtime

        runtime.flags.parse_flags(f"--task_topology_max_group_count={threads}")
        config = runtime.Config("local-task")
        modules = []
        if (place / "model.irpa").exists():
            index = runtime.ParameterIndex()
            index.load(str(place / "model.irpa"))
            provider = index.create_provider(scope="model")
            modules.append(runtime.create_io_parameters_module(config.vm_instance, provider))
        modules.append(runtime.VmModule.mmap(config.vm_instance, str(place / "model.vmfb")))
        main = runtime.load_vm_modules(*modules, config=config)[-1]["main"]
        half = case.dtype == "bfloat16"
        args = [
            _bf16_array(runtime, config.device, array)
            if half and array.dtype == np.float32
            else runtime.asdevicearray(config.device, array)
            for array in arrays
        ]
        return lambda: np.asarray(first(main(*args)).to_host()).astype(np.float32, copy=False)


def _decompositions() -> dict[Any, Any]:
    """What its importer has no rule for, beside what it decomposes itself."""
    import torch
    from torch._decomp import get_decompositions

    aten = torch.ops.aten
    table = get_decompositions(
        [
            aten._native_batch_norm_legit,
            aten._native_batch_norm_legit_no_training,
            aten.native_layer_norm,
            aten.addmm,
            aten.split.Tensor,
            aten._softmax,
            aten.embedding,
            aten.upsample_bilinear2d,
            aten._unsafe_index,
        ]
    )
    table[aten.diff.default] = torch.export.default_decompositions()[aten.diff.default]
    return table


def _bf16_array(runtime: Any, device: Any, values: np.ndarray) -> Any:
    import ml_dtypes

    view = device.allocator.allocate_buffer_copy(
        memory_type=runtime.MemoryType.DEVICE_LOCAL,
        allowed_usage=runtime.BufferUsage.DEFAULT | runtime.BufferUsage.MAPPING,
        device=device,
        buffer=narrow(values),
        element_type=runtime.HalElementType.BFLOAT_16,
    )
    dtype = np.dtype(ml_dtypes.bfloat16)
    return runtime.DeviceArray(device, view, implicit_host_transfer=True, override_dtype=dtype)
