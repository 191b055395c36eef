"""Language models in files, for tests."""
