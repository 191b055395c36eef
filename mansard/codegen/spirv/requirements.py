"""What SPIR-V needs of a device: capabilities by element type, and the features that stand for them."""

from __future__ import annotations

from collections.abc import Mapping, Set

from mansard.analysis.element_types import element_types, stored_types
from mansard.dtypes import DType
from mansard.ir.dispatch import Dispatch

FEATURES: Mapping[str, str] = {
    "Float16": "float16",
    "Float64": "float64",
    "Int64": "int64",
    "Int64Atomics": "int64_atomics",
    "GroupNonUniformArithmetic": "subgroup_arithmetic",
    "GroupNonUniformClustered": "subgroup_clustered",
    "StorageBuffer16BitAccess": "storage16",
    "StorageBuffer8BitAccess": "storage8",
    "SubgroupExtendedTypes": "subgroup_extended_types",
    "SignedZeroInfNanPreserve": "nan_preserve",
    "FloatControls2": "float_controls2",
    "CooperativeMatrixKHR": "cooperative_matrix",
    "CooperativeMatrixReductionsNV": "matrix_reductions",
    "CooperativeMatrixConversionsNV": "matrix_conversions",
    "DotProduct": "integer_dot_product",
    "BFloat16CooperativeMatrixKHR": "bfloat16_matrix",
    "Int8": "int8",
    "BFloat16TypeKHR": "bfloat16",
}
"""Capabilities and the named features (`mansard.hal.Capabilities.features`) of devices that have them."""

_STORED: Mapping[int, str] = {8: "StorageBuffer8BitAccess", 16: "StorageBuffer16BitAccess"}


def number_capability(bits: int, *, is_float: bool) -> str | None:
    """The capability behind a number of so many bits in memory; None where every device has it."""
    if bits == 64:
        return "Float64" if is_float else "Int64"
    return _STORED.get(bits)


def missing_type_feature(dispatch: Dispatch, features: Set[str]) -> str | None:
    """The first element type of a dispatch that asks for a feature which is not there, in a sentence."""
    stored = stored_types(dispatch)
    for dtype in sorted(element_types(dispatch), key=lambda d: d.value):
        feature = _type_feature(dtype, stored=dtype in stored)
        if feature is not None and feature not in features:
            return f"{dtype.value} needs the device feature {feature}"
    return None


def _type_feature(dtype: DType, *, stored: bool) -> str | None:
    # Registers hold what is narrower than 32 bits as 32-bit numbers; packed integers lie in bytes.
    if not stored and dtype.bits < 64:
        return None
    capability = number_capability(max(8, dtype.bits), is_float=dtype.is_float)
    return FEATURES[capability] if capability is not None else None
