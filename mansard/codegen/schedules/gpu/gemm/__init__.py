"""GPU schedules of matrix products."""
