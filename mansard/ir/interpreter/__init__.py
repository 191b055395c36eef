"""The reference interpreter of the Graph, in NumPy: what every op means."""
