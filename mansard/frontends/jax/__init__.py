"""JAX: functions lowered to StableHLO by JAX itself, and exported artifacts."""
