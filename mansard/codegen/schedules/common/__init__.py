"""Code that CPU and GPU schedules share."""
