"""Calibration: measurement of devices for placement's cost model."""

from mansard.calibration.device_figures import Calibration
from mansard.calibration.measure import calibrate
from mansard.calibration.profile_file import to_toml

__all__ = ["Calibration", "calibrate", "to_toml"]
