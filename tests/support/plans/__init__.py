"""Plans for tests: built by hand, from graphs, with artifacts, for devices."""
