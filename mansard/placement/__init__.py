"""Which device runs each dispatch, and why."""

from mansard.placement.cost import Work, work_of
from mansard.placement.place import DeviceSlot, Placement, PlacementResult, place

__all__ = ["DeviceSlot", "Placement", "PlacementResult", "Work", "place", "work_of"]
