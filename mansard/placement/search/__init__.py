"""The search for a placement: beam search with bounds, MILP, local search."""
