"""GPU schedules of matrix-vector products."""
