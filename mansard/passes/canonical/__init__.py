"""Canonicalisation passes: lowering to a small set of ops, removal of copies, constant folding."""
