"""GPU schedules of attention."""
