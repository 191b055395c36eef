"""Schedules turn a dispatch into kernel IR; `schedule` picks the one for a dispatch and a target."""

from mansard.codegen.schedules.base import Scheduled
from mansard.codegen.schedules.choose import choose, schedule

__all__ = ["Scheduled", "choose", "schedule"]
