"""Which device runs each dispatch, and why."""

from mansard.placement.constraints import DeviceSlot
from mansard.placement.cost import WorkEstimate, estimate_work
from mansard.placement.model_placement import ModelPlacement, place_model
from mansard.placement.options import PlacementOptions
from mansard.placement.place import PlacementResult, place

__all__ = [
    "DeviceSlot",
    "ModelPlacement",
    "PlacementOptions",
    "PlacementResult",
    "WorkEstimate",
    "estimate_work",
    "place",
    "place_model",
]
