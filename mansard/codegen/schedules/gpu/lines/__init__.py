"""GPU schedules of scans, sorts and scatters, whose work is split into lines along the op's axis."""
