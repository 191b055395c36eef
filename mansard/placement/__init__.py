"""Which device runs each dispatch, and why."""

from mansard.placement.cost import Work, work_of
from mansard.placement.options import PlacementOptions
from mansard.placement.place import DeviceSlot, PlacementResult, place

__all__ = ["DeviceSlot", "PlacementOptions", "PlacementResult", "Work", "place", "work_of"]
