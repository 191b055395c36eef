"""What schedules of CPUs and GPUs share."""
