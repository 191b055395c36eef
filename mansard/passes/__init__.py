"""Passes over the Graph IR, each ``Graph -> Graph``, and fusion into dispatches (`mansard.passes.pipeline`
lists them in order)."""
