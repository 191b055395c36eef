"""Several devices at once, beside the best possible."""
