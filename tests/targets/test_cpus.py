"""The table of CPUs says what LLVM says."""

import importlib.util
import sys

import llvmlite.binding as llvm
import pytest
from support.paths import ROOT

from mansard.targets.cpus import known_cpus
from mansard.targets.features import ARCHITECTURES, FEATURES, closure, without

TOOL = ROOT / "tools/gen_cpus.py"


@pytest.fixture(scope="module")
def tool():
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    spec = importlib.util.spec_from_file_location("gen_cpus", TOOL)
    module = importlib.util.module_from_spec(spec)
    sys.modules["gen_cpus"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["gen_cpus"]


@pytest.mark.parametrize(
    ("arch", "names"),
    [
        ("x86_64", ["x86-64-v3", "znver5", "sapphirerapids", "alderlake"]),
        ("aarch64", ["cortex-a55", "cortex-a76", "neoverse-v1", "apple-m2"]),
        ("riscv64", ["spacemit-x60", "sifive-u74", "sifive-x280"]),
    ],
)
def test_features_are_those_llvm_gives_the_cpu(tool, arch, names):
    for name in names:
        assert closure(tool.features(arch, name, FEATURES[arch])) == known_cpus()[name].features


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_no_cpu_of_llvm_is_missing(tool, arch):
    known = {name for name, cpu in known_cpus().items() if cpu.arch == arch}
    listed = set(tool.cpus(arch))
    missing = listed - known
    # What is left out has no 64-bit mode or no floating-point registers: nothing of AArch64.
    assert len(missing) < len(listed) / 2 and (arch != "aarch64" or not missing)


def test_the_closure_of_every_feature_is_known():
    for arch, features in FEATURES.items():
        for feature in features:
            assert closure([feature]) <= set(features)
            assert feature not in without(frozenset(features), feature), arch
