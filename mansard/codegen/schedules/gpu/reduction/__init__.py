"""GPU schedules of reductions over rows."""
