"""Devices of a plan: which variant runs here, and which open device each slot is bound to."""
