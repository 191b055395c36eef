"""Expansions of scalar ops and conversions into kernel IR instructions."""

from mansard.codegen.math.apply import apply, neutral

__all__ = ["apply", "neutral"]
