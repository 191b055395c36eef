"""Helpers of the tests of regions."""
