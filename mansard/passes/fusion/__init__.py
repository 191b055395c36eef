"""Fusion of ops into dispatches."""
