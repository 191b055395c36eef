"""Passes that split ops so that more workgroups, or several devices, share the work."""
