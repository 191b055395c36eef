"""Passes over the Graph IR, each ``Graph -> Graph``, and fusion into dispatches."""
