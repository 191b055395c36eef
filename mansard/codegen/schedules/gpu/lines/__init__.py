"""GPU schedules of scans, sorts and scatters."""
