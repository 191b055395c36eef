"""Symbolic sizes: the user's dynamic dims, symbols, and ops whose meaning depends on a size."""
