"""Schedules lower a dispatch to kernel IR; `schedule` selects the one for a dispatch and a target."""

from mansard.codegen.schedules.choose import (
    candidates,
    choose,
    refuses,
    rows_read_again,
    schedule,
    stores_transposed,
    takes_attention,
    takes_parts,
    takes_products,
)
from mansard.codegen.schedules.common.base import Scheduled

__all__ = [
    "Scheduled",
    "candidates",
    "choose",
    "refuses",
    "rows_read_again",
    "schedule",
    "stores_transposed",
    "takes_attention",
    "takes_parts",
    "takes_products",
]
