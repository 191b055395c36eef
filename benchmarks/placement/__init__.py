"""How good placements are, and how well their cost is predicted."""
