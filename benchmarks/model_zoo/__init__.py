"""Architectures that people use, each from several frameworks, on each device and split over both."""
