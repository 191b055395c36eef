"""The table of rules: how each ONNX op becomes ops of the Graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from mansard.frontends.onnx.entries import Entry
from mansard.frontends.onnx.node import Node

if TYPE_CHECKING:
    from mansard.frontends.onnx.graph import GraphImporter

Result: TypeAlias = Entry | list[Entry | None]
Rule: TypeAlias = Callable[["GraphImporter", Node], Result | None]
"""A rule returns the node's result or a list of its results; None leaves it to the standard's function."""

_RULES: dict[tuple[str, str], Rule] = {}
_REFUSALS: dict[str, str] = {}


def rule(*names: str, domain: str = "") -> Callable[[Rule], Rule]:
    """Enter a rule for ops of a domain."""

    def enter(function: Rule) -> Rule:
        for name in names:
            _RULES[(domain, name)] = function
        return function

    return enter


def enter(name: str, function: Rule, domain: str = "") -> None:
    """Enter a rule that is made by a function."""
    _RULES[(domain, name)] = function


def refuse(name: str, reason: str) -> None:
    """Enter an op of ONNX that is never supported, and why."""
    _REFUSALS[name] = reason

    def function(graph: GraphImporter, node: Node) -> Result:
        raise node.fail(reason)

    enter(name, function)


def refusal(domain: str, name: str) -> str | None:
    """Why an op is never supported; None for others."""
    return None if domain not in ("", "ai.onnx") else _REFUSALS.get(name)


def find_rule(domain: str, name: str) -> Rule | None:
    """The rule of an op, if there is one."""
    return _RULES.get(("" if domain == "ai.onnx" else domain, name))


def supported() -> list[str]:
    """Every op with a rule, as ``domain.name``."""
    return sorted(f"{domain}.{name}".lstrip(".") for domain, name in _RULES)
