"""Schedules turn a dispatch into kernel IR; `schedule` picks the one for a dispatch and a target."""

from mansard.codegen.schedules.choose import candidates, choose, schedule
from mansard.codegen.schedules.common.base import Scheduled
from mansard.codegen.schedules.common.parameters import Parameters

__all__ = ["Parameters", "Scheduled", "candidates", "choose", "schedule"]
