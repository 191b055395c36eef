"""A CPU and a GPU on one model."""
