"""Calls of what is no op of StableHLO: by target, or refused by name."""

from __future__ import annotations

from mansard.dims import Expr
from mansard.errors import UnsupportedOpError
from mansard.frontends.stablehlo.entries import Entry
from mansard.frontends.stablehlo.graph import StableHloImporter
from mansard.frontends.stablehlo.node import Node
from mansard.frontends.stablehlo.table import find_rule, refuse, results_of, rule
from mansard.plan.constraints import ShapeConstraint

_NEUTRAL = frozenset(
    {
        "Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape", "annotate_device_placement",
        "MoveToDevice", "MoveToHost", "LayoutConstraint", "xla.sdy.Sharding",
    }
)  # fmt: skip
"""Targets that say where tensors lie, and compute nothing."""


@rule("stablehlo.custom_call")
def custom_call(g: StableHloImporter, node: Node) -> list[Entry]:
    """A call by its target's name."""
    target = node.word("call_target_name")
    if target in _NEUTRAL:
        return list(node.inputs)
    if target == "shape_assertion":
        _assert_shape(g, node)
        return []
    function = find_rule(target) if target.startswith(("mhlo.", "chlo.")) else None
    if function is None:
        raise UnsupportedOpError(
            f"stablehlo.custom_call @{target}", node.location, "no rule imports this target"
        )
    return list(results_of(function(g, node)))


def _assert_shape(g: StableHloImporter, node: Node) -> None:
    """A condition between sizes that the model was exported for, which calls are held to."""
    flag = node.op.operands[0]
    content = node.tensor(0).content
    if content is not None and not node.tensor(0).symbolic:
        if not bool(content.reshape(-1)[0]):
            raise node.fail("a condition between sizes that never holds")
        return
    condition = flag.owner
    if condition.name != "stablehlo.compare":
        return
    a, b = (g.tensor_of(g.find(v)) for v in condition.operands)
    if a.content is None or b.content is None:
        return
    left, right = a.content.reshape(-1)[0], b.content.reshape(-1)[0]
    direction = Node(condition, []).word("comparison_direction")
    if direction in ("GE", "GT"):
        left, right = right, left
    if direction == "EQ" and all(isinstance(d, Expr) and len(d.symbols()) == 1 for d in (left, right)):
        g.equal(left, right)
    relation = {"GE": "<=", "GT": "<", "LE": "<=", "LT": "<", "EQ": "==", "NE": "!="}[direction]
    constraint = ShapeConstraint.of(left, relation, right)
    if not constraint.implied:
        g.constraints.append(constraint)


for _name, _reason in {
    "fft": "Fourier transforms have complex results, which are not supported",
    "complex": "complex numbers are not supported", "real": "complex numbers are not supported",
    "imag": "complex numbers are not supported",
    "rng": "random numbers differ in each call", "rng_bit_generator": "random numbers of a device",
    "cholesky": "matrix decompositions are not supported",
    "triangular_solve": "solving systems of equations is not supported",
    "all_gather": "collectives are not supported", "all_reduce": "collectives are not supported",
    "all_to_all": "collectives are not supported", "collective_permute": "collectives are not supported",
    "reduce_scatter": "collectives are not supported", "partition_id": "collectives are not supported",
    "infeed": "transfers within a model are not supported",
    "outfeed": "transfers within a model are not supported",
    "send": "transfers within a model are not supported",
    "recv": "transfers within a model are not supported",
    "set_dimension_size": "sizes that are set at run time are not supported",
    "batch_norm_training": "training is not supported", "batch_norm_grad": "training is not supported",
}.items():  # fmt: skip
    refuse(f"stablehlo.{_name}", _reason)
