"""Loader, physical devices, features and queues: decided from a snapshot, then created."""
