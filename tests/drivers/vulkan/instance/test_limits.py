"""Whole programs on a device held to limits: compiled for them, and unable to pass them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import vulkan_support

from mansard.hal import BufferRef, CopyCommand, MemoryKind

pytestmark = pytest.mark.vulkan
MODEL = """
func.func @main(%x: tensor<48x64xf32>, %w: tensor<64x40xf32>) -> tensor<48x40xf32> {
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : tensor<48x40xf32>
  %filled = linalg.fill ins(%zero : f32) outs(%empty : tensor<48x40xf32>) -> tensor<48x40xf32>
  %y = linalg.matmul ins(%x, %w : tensor<48x64xf32>, tensor<64x40xf32>)
    outs(%filled : tensor<48x40xf32>) -> tensor<48x40xf32>
  return %y : tensor<48x40xf32>
}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    vulkan_support.usable_device()
    path = tmp_path_factory.mktemp("limits")
    (path / "m.mlir").write_text(MODEL)
    np.save(path / "x.npy", np.ones((48, 64), np.float32))
    np.save(path / "w.npy", np.ones((64, 40), np.float32))
    return path


def run_python(
    folder: Path, code: str, *arguments: str, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run code in a folder, with a cache of its own."""
    command = [sys.executable, "-c", code, *arguments]
    environment = {**os.environ, "MANSARD_CACHE_DIR": str(folder / "cache"), **variables}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


COMMANDS = """
import json, sys
from mansard.cli.main import app
for arguments in json.loads(sys.argv[1]):
    if code := app(arguments, standalone_mode=False):
        sys.exit(code)
    print("\\0", flush=True)
"""


def mansards(folder: Path, *commands: tuple[str, ...], **variables: str) -> list[Any]:
    """Command lines one after another in a process whose drivers begin as the first finds them; the JSON
    of each."""
    done = run_python(folder, COMMANDS, json.dumps(commands), **variables)
    assert done.returncode == 0, done.stderr
    return [json.loads(text) for text in done.stdout.split("\0")[:-1]]


def mansard(folder: Path, *arguments: str, code: int = 0, **variables: str) -> Any:
    """A run of the command line; its JSON, or its error."""
    done = run_python(folder, "from mansard.cli.main import app; app()", *arguments, **variables)
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout) if code == 0 else done.stderr


def vulkan(listed: list[dict[str, Any]]) -> dict[str, Any]:
    return next(device for device in listed if device["id"] == "vulkan")


def test_a_device_held_to_limits_from_listing_to_running(folder: Path) -> None:
    plain = vulkan_support.usable_device()
    limits, inputs = ("--limits", "vulkan-minimum"), ("--input", "@x.npy", "--input", "@w.npy")
    target = ("--device", "vulkan", "--fallback", "error")
    listed, _, ran = mansards(
        folder,
        ("devices", *limits, "--json"),
        ("compile", "m.mlir", "-o", "held.mansard", *target, *limits, "--json"),
        ("run", "held.mansard", *inputs, *limits, "--json"),
    )
    held = vulkan(listed)
    assert held["name"] == f"{plain.name} held to vulkan-minimum"
    assert (held["tier"], held["reasons"]) == ("vulkan-1.3: supported", [])
    assert held["limits"]["workgroup_invocations"] == 128
    assert held["limits"]["max_allocation"] <= 1 << 30
    assert not held["features"]["float16"]
    assert held["target_hint"].startswith("vulkan:1.3")
    assert vulkan(mansard(folder, "devices", "--json", MANSARD_VULKAN_LIMITS="vulkan-minimum")) == held

    assert (ran["outputs"][0]["min"], ran["outputs"][0]["max"]) == (64.0, 64.0)
    mansard(folder, "run", "held.mansard", *inputs, "--json")


def test_what_needs_more_than_the_limits_is_refused(folder: Path) -> None:
    """Code for a larger device, on one that is held to be a smaller one."""
    wide = "vulkan:1.3+subgroup_arithmetic+workgroup=256+shared=32768"
    if vulkan_support.usable_device().limits["workgroup_invocations"] < 256:
        pytest.skip("the device itself is no larger")
    mansard(folder, "compile", "m.mlir", "-o", "wide.mansard", "--target", wide, "--json", "--no-cache")
    inputs = ("--input", "@x.npy", "--input", "@w.npy")
    error = mansard(folder, "run", "wide.mansard", *inputs, "--limits", "vulkan-minimum", code=1)
    assert "held to vulkan-minimum" in error
    assert "needs shared_memory>=" in error or "needs workgroup_invocations>=" in error


def test_several_gpus_in_one_artifact(folder: Path) -> None:
    """Whichever variant the present device takes is right, and said to be taken."""
    target = ("--target", "vulkan:hopper,valhall4,1.3", "--fallback", "error")
    _, explained, ran = mansards(
        folder,
        ("compile", "m.mlir", "-o", "many.mansard", *target, "--json"),
        ("explain", "many.mansard", "--json"),
        ("run", "many.mansard", "--input", "@x.npy", "--input", "@w.npy", "--json"),
    )
    told = explained["variants"]
    assert [row["target"] for row in told] == ["vulkan:hopper", "vulkan:valhall4", "vulkan:1.3"]
    (chosen,) = [row for row in told if row["chosen"]]
    assert chosen["reason"] in ("the first that runs", f"made for {vulkan_support.usable_device().name}")
    assert (ran["outputs"][0]["min"], ran["outputs"][0]["max"]) == (64.0, 64.0)


@pytest.mark.parametrize("without", ["buffer_device_address", "int64"])
def test_a_device_that_takes_no_addresses(folder: Path, without: str) -> None:
    """Compiling for it gives descriptors without being asked; such code runs on others too."""
    target = ("--device", "vulkan", "--fallback", "error")
    _, ran = mansards(
        folder,
        ("compile", "m.mlir", "-o", "d.mansard", *target, "--json"),
        ("run", "d.mansard", "--input", "@x.npy", "--input", "@w.npy", "--json"),
        MANSARD_VULKAN_DISABLE=without,
    )
    assert (ran["outputs"][0]["min"], ran["outputs"][0]["max"]) == (64.0, 64.0)


def test_a_feature_switched_off(folder: Path) -> None:
    plain = vulkan_support.usable_device()
    off = vulkan(mansard(folder, "devices", "--json", MANSARD_VULKAN_DISABLE="nan_preserve,int64_atomics"))
    changed = {name for name, present in plain.features.items() if present and not off["features"][name]}
    assert changed == {n for n in ("nan_preserve", "int64_atomics") if plain.features[n]}
    without = vulkan(mansard(folder, "devices", "--json", MANSARD_VULKAN_DISABLE="timelineSemaphore"))
    assert without["tier"] == "vulkan-1.3: not supported"
    assert without["reasons"] == ["feature timelineSemaphore is missing"]
    assert without["target_hint"] == ""
    error = mansard(folder, "devices", code=1, MANSARD_VULKAN_DISABLE="flaot16")
    assert "no Vulkan feature 'flaot16'; did you mean float16" in error


def test_limits_in_a_program() -> None:
    code = (
        "import mansard\n"
        "mansard.configure_driver('vulkan', limits='mali-g720', disable=['float16'])\n"
        "info = next(i for i in mansard.devices() if i.id == 'vulkan')\n"
        "print(info.limits['workgroup_invocations'] <= 512, info.features['float16'])\n"
    )
    vulkan_support.usable_device()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["True", "False"], done.stderr


def test_copies_where_kernels_for_them_do_not_fit() -> None:
    """A discrete device copies by kernel, unless the kernel's workgroups are above the limits."""
    data = np.arange(3 << 18, dtype=np.uint32)
    for limits, by_kernel in (("", True), ("vulkan-minimum", False)):
        device = vulkan_support.Variation(limits=limits, discrete=True).open()
        source, middle, target = (
            device.allocate(data.nbytes, kind)
            for kind in (MemoryKind.SHARED, MemoryKind.DEVICE, MemoryKind.SHARED)
        )
        source.view()[:] = data.view(np.uint8)
        vulkan_support.run(
            device,
            CopyCommand(BufferRef(source), BufferRef(middle), data.nbytes),
            CopyCommand(BufferRef(middle), BufferRef(target), data.nbytes),
        )
        np.testing.assert_array_equal(target.view().view(np.uint32), data)
        assert device._recorder._encoder.copies_by_kernel == by_kernel
        device.close()
    vulkan_support.assert_no_validation_messages()
