"""An artifact runs where only the base install is: no torch, no MLIR, no LLVM."""

import json
import os
import subprocess
import sys
import venv
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
import torch
from packaging.requirements import Requirement
from support.paths import ROOT
from torch import nn

import mansard


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """The interpreter of a fresh environment with the base install."""
    folder = tmp_path_factory.mktemp("base")
    source = folder / "source"
    source.mkdir()
    names = subprocess.run(
        ["git", "ls-files", "mansard", "src", "pyproject.toml", "setup.py", "README.md", "LICENSE"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout.split()  # fmt: skip
    for name in names:
        target = source / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes((ROOT / name).read_bytes())
    venv.create(folder / "venv", with_pip=False)
    interpreter = folder / "venv" / "bin" / "python"
    # The wheel is built with the build requirements of this environment.
    pip = [sys.executable, "-m", "pip"]
    build = [*pip, "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(folder), str(source)]
    subprocess.run(build, check=True, cwd=folder)
    (wheel,) = folder.glob("*.whl")
    install = [*pip, "--python", str(interpreter), "install", "-q", "--no-compile", "--no-deps", str(wheel)]
    subprocess.run(install, check=True, cwd=folder, env=environment())
    (site,) = (folder / "venv").glob("lib/python*/site-packages")
    link_requirements(site)
    return interpreter


def link_requirements(site):
    """Give ``site`` what the wheel in it requires, and no more, from the packages of this environment."""
    (wheel,) = metadata.distributions(name="mansard", path=[str(site)])
    linked, pending = set(), list(wheel.requires)
    while pending:
        requirement = Requirement(pending.pop())
        if requirement.name in linked or (
            requirement.marker and not requirement.marker.evaluate({"extra": ""})
        ):
            continue
        linked.add(requirement.name)
        package = metadata.distribution(requirement.name)
        assert package.version in requirement.specifier, f"{requirement}: {package.version} is here"
        for name in {path.parts[0] for path in package.files} - {"..", "__pycache__"}:
            (site / name).symlink_to(package.locate_file(name))
        pending += package.requires or []


def environment():
    """That of this process, without what it has installed elsewhere."""
    return {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONWARNINGS")}


def run(python, *words, cwd):
    command = [python, *words]
    return subprocess.run(command, cwd=cwd, env=environment(), capture_output=True, text=True, check=False)


def test_an_artifact_runs_with_the_base_install(python, tmp_path):
    layers = nn.Conv2d(3, 8, 3, stride=2), nn.BatchNorm2d(8), nn.ReLU6(), nn.Flatten(), nn.Linear(392, 10)
    module, image = nn.Sequential(*layers).eval(), torch.randn(1, 3, 16, 16)
    with mansard.compile(module, (image,), devices="cpu") as compiled:
        compiled.save(tmp_path / "m.mansard")
    np.save(tmp_path / "x.npy", image.numpy())
    command = ["-m", "mansard", "run", "m.mansard", "--input", "@x.npy", "--output", "@y.npy", "--json"]
    result = run(python, *command, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    json.loads(result.stdout)
    with torch.no_grad():
        expected = module(image).numpy()
    actual = np.load(tmp_path / "y.npy")
    assert np.abs(actual - expected).max() < 1e-4 * np.abs(expected).max()


def test_the_compiler_is_missing_with_a_clear_error(python, tmp_path):
    (tmp_path / "m.mlir").write_text("module {}")
    code = "import mansard\ntry:\n mansard.compile('m.mlir')\nexcept mansard.CompileError as e: print(e)"
    result = run(python, "-c", code, cwd=tmp_path)
    assert "pip install 'mansard[compile]'" in result.stdout, result.stderr


def test_drivers_are_tested_and_built_without_a_checkout(python, tmp_path):
    tools = Path(pytest.__file__).parent.parent
    code = (
        f"import os, sys; sys.path.append({str(tools)!r}); import mansard, mansard.testing;"
        "header = os.path.join(mansard.get_include(), 'mansard_core.h');"
        "print(mansard.testing.__file__, os.path.getsize(header))"
    )
    result = run(python, "-c", code, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    module, size = result.stdout.split()
    assert Path(module).is_relative_to(python.parent.parent)
    assert int(size) > 1000


def test_importing_is_quick_and_pulls_in_no_compiler(python, tmp_path):
    code = (
        "import sys, time; t = time.perf_counter(); import mansard; print(time.perf_counter() - t);"
        "heavy = ('torch', 'torch_mlir', 'llvmlite', 'elftools');"
        "print([m for m in sys.modules if m.split('.')[0] in heavy])"
    )
    times = []
    for _ in range(5):
        seconds, heavy = run(python, "-c", code, cwd=tmp_path).stdout.split("\n")[:2]
        assert heavy == "[]"
        times.append(float(seconds))
    assert min(times) < 0.3
