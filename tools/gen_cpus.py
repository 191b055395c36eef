"""Makes ``mansard/targets/data/cpus.toml``: which of the features Mansard knows each CPU of LLVM has.

LLVM has no call that tells a CPU's features. Its inliner does: a function that needs a feature is
inlined only into code for CPUs that have it. So for every CPU and feature a caller for the CPU calls a
function for the CPU with the feature added, and the features are those whose call is gone.

Run ``python tools/gen_cpus.py`` to write the file, ``--check`` to compare with it.
"""

from __future__ import annotations

import argparse
import multiprocessing
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import llvmlite.binding as llvm

from mansard.targets.features import ARCHITECTURES, FEATURES, closure

OUTPUT = Path(__file__).parent.parent / "mansard/targets/data/cpus.toml"
BASELINE = {"x86_64": "x86-64", "aarch64": "generic", "riscv64": "generic-rv64"}
NEEDED = {"x86_64": "sse2", "aarch64": "neon", "riscv64": "d"}
"""Without floating-point registers there are no kernels."""
NOT_CPUS = {"generic", "generic-ooo", "generic-rv32", "generic-rv64"}
_LIST = """
import sys, llvmlite.binding as llvm
llvm.initialize_all_targets(); llvm.initialize_all_asmprinters()
llvm.Target.from_triple(sys.argv[1]).create_target_machine(cpu="help", codemodel="small")
"""


def triple(arch: str) -> str:
    """LLVM's target triple."""
    return f"{arch}-unknown-linux-gnu"


def cpus(arch: str) -> list[str]:
    """The CPU names that LLVM lists for an architecture, 32-bit ones among them."""
    command = [sys.executable, "-c", _LIST, triple(arch)]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    names = re.findall(r"^  (\S+) +- Select the", listed.partition("Available features")[0], re.M)
    return [name for name in names if name not in NOT_CPUS]


def _text(feature: str) -> str:
    return ",".join(f"+{f}" for f in sorted(closure([feature])))


def features(arch: str, cpu: str, wanted: Sequence[str]) -> list[str]:
    """Those of ``wanted`` that the CPU has. LLVM ends the process when the CPU has no 64-bit mode."""
    lines = [f'target triple = "{triple(arch)}"']
    for i, feature in enumerate(wanted):
        lines += [
            f"define internal void @callee{i}(ptr %p) #{2 * i} {{\n store i32 1, ptr %p\n ret void\n}}",
            f"define void @caller{i}(ptr %p) #{2 * i + 1} {{\n call void @callee{i}(ptr %p)\n ret void\n}}",
            f'attributes #{2 * i} = {{ "target-cpu"="{cpu}" "target-features"="{_text(feature)}" }}',
            f'attributes #{2 * i + 1} = {{ "target-cpu"="{cpu}" }}',
        ]
    module = llvm.parse_assembly("\n".join(lines), llvm.create_context())
    machine = llvm.Target.from_triple(triple(arch)).create_target_machine(
        cpu=BASELINE[arch], codemodel="small"
    )
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=2))
    builder.getModulePassManager().run(module, builder)
    return [f for i, f in enumerate(wanted) if "call " not in str(module.get_function(f"caller{i}"))]


def _report(arch: str, cpu: str, sender: multiprocessing.connection.Connection) -> None:
    sys.stderr.close()
    sender.send(features(arch, cpu, FEATURES[arch]))


def probe(arch: str, cpu: str) -> list[str] | None:
    """`features` in a process of its own; None for a CPU that cannot run 64-bit code."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_report, args=(arch, cpu, sender))
    child.start()
    sender.close()
    try:
        return list(receiver.recv())
    except EOFError:
        return None
    finally:
        child.join()


def generate() -> str:
    """The file's text: CPUs with equal features share an entry."""
    version = ".".join(map(str, llvm.llvm_version_info))
    lines = [
        f"# Written by tools/gen_cpus.py from LLVM {version}; do not edit.",
        "# The features (of those in mansard/targets/features.py) of every CPU, by LLVM's names.",
    ]
    for arch in ARCHITECTURES:
        groups: dict[tuple[str, ...], list[str]] = defaultdict(list)
        for cpu in cpus(arch):
            features = probe(arch, cpu)
            if features and NEEDED[arch] in features:
                groups[tuple(features)].append(cpu)
        for features, names in sorted(groups.items(), key=lambda item: (len(item[0]), item[1])):
            lines += ["", f"[[{arch}]]", f'cpus = "{" ".join(names)}"', f'features = "{" ".join(features)}"']
    return "\n".join(lines) + "\n"


def main() -> int:
    """Write or compare; 1 when the file differs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare with the file instead of writing it")
    check = parser.parse_args().check
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    text = generate()
    if check:
        return int(text != OUTPUT.read_text(encoding="utf-8"))
    OUTPUT.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
