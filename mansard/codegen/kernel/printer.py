"""Kernels as text, for dumps and error messages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mansard.codegen.kernel.ir import Binding, Block, For, If, Inst, Kernel, KValue, SharedMemory


def print_kernel(kernel: Kernel) -> str:
    """One line per instruction, indented by nesting.

    ``%3:f32<8> = load %1 memory=b0`` reads binding 0; shared memory prints as ``s0``.
    """
    bindings = ", ".join(f"b{b.index}:{b.dtype.value}{' rw' if b.writable else ''}" for b in kernel.bindings)
    size = "x".join(str(n) for n in kernel.workgroup)
    head = f"kernel {kernel.name}({bindings}; {kernel.params} params) workgroup {size} index "
    subgroup = f" subgroup {kernel.subgroup}" if kernel.subgroup else ""
    lines = [head + f"{kernel.index.value}{subgroup} {{"]
    lines += [f"  shared s{s.index}: {s.dtype.value}[{s.size}]" for s in kernel.shared]
    lines += _block(kernel.body, 1)
    return "\n".join([*lines, "}"])


def print_inst(inst: Inst) -> str:
    """One instruction as text."""
    left = f"{_typed(inst.result)} = " if inst.result is not None else ""
    attrs = "".join(f" {key}={_attr(value)}" for key, value in inst.attrs.items())
    return f"{left}{inst.op} {_values(inst.args)}".rstrip() + attrs


def _typed(value: KValue) -> str:
    return f"{value}:{value.type}"


def _values(values: Sequence[KValue]) -> str:
    return ", ".join(str(v) for v in values)


def _attr(value: object) -> str:
    if isinstance(value, Binding):
        return f"b{value.index}"
    if isinstance(value, SharedMemory):
        return f"s{value.index}"
    if isinstance(value, Block):
        return "{ " + "; ".join(line.strip() for line in _block(value, 0)) + " }"
    if isinstance(value, tuple) and value and all(isinstance(v, KValue) for v in value):
        return _values(value)
    return repr(value) if isinstance(value, float) else str(value)


def _block(block: Block, depth: int) -> Iterator[str]:
    pad = "  " * depth
    for node in block.nodes:
        if isinstance(node, Inst):
            yield pad + print_inst(node)
        elif isinstance(node, For):
            yield from _for(node, depth)
        else:
            yield from _if(node, depth)


def _for(node: For, depth: int) -> Iterator[str]:
    pad = "  " * depth
    results = ", ".join(_typed(v) for v in node.results)
    carried = ", ".join(f"{c} = {i}" for c, i in zip(node.carried, node.inits, strict=True))
    left = f"{results} = " if results else ""
    tail = f" carried({carried})" if carried else ""
    unroll = f" unroll={node.unroll}" if node.unroll > 1 else ""
    bounds = f"{node.lower}, {node.upper}, {node.step}"
    yield f"{pad}{left}for {_typed(node.index)} in range({bounds}){tail}{unroll} {{"
    yield from _block(node.body, depth + 1)
    if node.yields:
        yield f"{pad}  yield {_values(node.yields)}"
    yield pad + "}"


def _if(node: If, depth: int) -> Iterator[str]:
    pad = "  " * depth
    yield f"{pad}if {node.condition} {{"
    yield from _block(node.then, depth + 1)
    if node.otherwise.nodes:
        yield pad + "} else {"
        yield from _block(node.otherwise, depth + 1)
    yield pad + "}"
