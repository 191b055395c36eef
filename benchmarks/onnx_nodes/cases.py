"""The node tests of the installed onnx package, and the op that each is about."""

from __future__ import annotations

import functools
import re
import warnings
from typing import Any

_EXPANDED = re.compile(r"_expanded(_ver\d+|_function\w*)?$")


@functools.cache
def cases() -> dict[str, Any]:
    """The tests by name, in the suite's order."""
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {case.name: case for case in collect_testcases(None)}


def op_of(name: str) -> str:
    """The op that a test is about: of a function that stands as its body, that function's."""
    known = cases()
    whole = known.get(_EXPANDED.sub("", name), known[name])
    nodes = whole.model.graph.node
    node = nodes[0] if len(nodes) == 1 else max(nodes, key=lambda n: _relevance(n.op_type, name))
    return f"{node.domain}.{node.op_type}" if node.domain not in ("", "ai.onnx") else str(node.op_type)


def _relevance(op: str, name: str) -> int:
    """The length of an op's name where the test's name has it: of several nodes the test names its own."""
    flat = name.replace("_", "")
    return len(op) if op.lower() in flat else 0
