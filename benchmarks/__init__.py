"""Programs that measure Mansard: ``python -m benchmarks.GROUP.PROGRAM``, from the root of the repository."""
