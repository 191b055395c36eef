"""Calibration: devices measured for the cost model of placement."""

from mansard.calibration.device_figures import Calibration
from mansard.calibration.measure import calibrate
from mansard.calibration.profile_file import to_toml

__all__ = ["Calibration", "calibrate", "to_toml"]
