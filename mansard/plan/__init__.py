"""The plan: what compiler and runtime share, as plain data, and what follows from it."""
