"""Scalar ops and conversions as kernel IR instructions: one table that all code generators share."""

from mansard.codegen.math.apply import apply, apply_in_body, neutral
from mansard.codegen.math.lowering import register_scalar_lowering

__all__ = ["apply", "apply_in_body", "neutral", "register_scalar_lowering"]
