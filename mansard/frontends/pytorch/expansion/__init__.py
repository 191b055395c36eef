"""Calls of an exported program that are replaced before its decomposition, such as control flow."""
