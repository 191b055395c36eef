"""What placement knows of the benchmark networks, kept as data, so that it runs without compiling them.

    python -m benchmarks.placement.outlines [NETWORK ...]

compiles networks of benchmarks/harness for the CPU and writes benchmarks/placement/outlines/NETWORK.json: per
dispatch bytes, operations, element type, bytes written and whether it is one product; the edges between
dispatches; the constants with their readers; groups of dispatches that share a state.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mansard import dims
from mansard.placement.cost import WorkEstimate
from mansard.placement.plan_workload import plan_workload
from mansard.placement.problem import DataEdge, ResidentConstant
from mansard.placement.workload import Workload

if TYPE_CHECKING:
    from mansard.plan.plan import Plan

FOLDER = Path(__file__).parent / "outlines"
NETWORKS = ("mobilenet_v2", "minilm", "deeplabv3", "resnet50", "qwen_prefill", "qwen_decode")
_TOKENS = 128


@dataclass(frozen=True)
class Network:
    """A workload, and which of its dispatches are one product with maps fused to it: what an NPU takes."""

    name: str
    workload: Workload
    products: tuple[bool, ...]

    @property
    def weights(self) -> int:
        """Bytes of all constants."""
        return sum(constant.bytes for constant in self.workload.constants)

    def quantised(self) -> Network:
        """The same with products that count at the rate of 8-bit integers; bytes stay as they are."""
        works = [
            replace(work, dtype="i8") if product else work
            for work, product in zip(self.workload.works, self.products, strict=True)
        ]
        return replace(self, workload=replace(self.workload, works=tuple(works)))


def load(name: str) -> Network:
    """A network by name (`NETWORKS`)."""
    data = json.loads((FOLDER / f"{name}.json").read_text("utf-8"))
    works = tuple(WorkEstimate(*row[:4]) for row in data["dispatches"])
    edges = tuple(DataEdge(producer, tuple(users), size) for producer, users, size in data["edges"])
    constants = tuple(ResidentConstant(size, tuple(users)) for size, users in data["constants"])
    colocated = tuple(map(tuple, data["colocated"]))
    workload = Workload(works, edges, colocated, constants)
    return Network(name, workload, tuple(bool(row[4]) for row in data["dispatches"]))


def write(name: str, plan: Plan) -> None:
    """Keep the workload of a network's plan."""
    sizes = {dim.name: dims.representative(dims.symbol(dim)) for dim in plan.dims}
    workload = plan_workload(plan, sizes)
    products = [_is_product(decision.ops) for decision in plan.decisions]
    data: dict[str, list[Any]] = {
        "dispatches": [
            [w.bytes, w.operations, w.dtype, w.written, int(p)]
            for w, p in zip(workload.works, products, strict=True)
        ],
        "edges": [[m.producer, list(m.consumers), m.bytes] for m in workload.edges],
        "constants": [[c.bytes, list(c.readers)] for c in workload.constants],
        "colocated": [list(group) for group in workload.colocated],
    }
    lines = ",\n".join(
        f'"{key}": [\n' + ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows) + "]"
        for key, rows in data.items()
    )
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / f"{name}.json").write_text(f"{{\n{lines}\n}}\n", "utf-8")


def _is_product(ops: str) -> bool:
    names = ops.split()
    return names.count("contraction") == 1 and all(
        name.partition("×")[0] in ("contraction", "map", "reshape") for name in names
    )


def build(name: str) -> None:
    """Compile a network of the harness for the CPU and keep its workload. Decoders are in bf16."""
    import torch

    from benchmarks.harness import networks
    from mansard.compiler import CompileOptions, compile_model

    family, _, entry = name.partition("_") if name.startswith("qwen") else (name, "", "")
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        module: Any = networks.network(family)
        if entry:
            module = module.to(torch.bfloat16)
            ids = torch.randint(0, 1000, (1, _TOKENS), generator=generator)
            config = module.config
            cache = torch.zeros(
                config.num_hidden_layers, 1, config.num_key_value_heads, _TOKENS, config.head_dim
            ).to(torch.bfloat16)
            arguments = (ids,) if entry == "prefill" else (ids[:, :1], cache, cache.clone())
            wrapped = networks.Prefill(module) if entry == "prefill" else networks.Decode(module)
        else:
            shape = (1, 3, networks.PIXELS[name], networks.PIXELS[name]) if name in networks.PIXELS else None
            image = torch.randn(shape, generator=generator) if shape else None
            arguments = (torch.randint(0, 1000, (1, _TOKENS), generator=generator),)
            arguments = arguments if image is None else (image,)
            wrapped = networks.Forward(module)
        compiled = compile_model(wrapped.eval(), arguments, options=CompileOptions(targets=("cpu",)))
    write(name, compiled.plan)


def main(names: Sequence[str]) -> None:
    """Build the named outlines, or all."""
    for name in names or NETWORKS:
        build(name)
        print(f"{FOLDER / name}.json: {len(load(name).workload.works)} dispatches")


if __name__ == "__main__":
    main(sys.argv[1:])
