"""GPU schedules of windows."""
