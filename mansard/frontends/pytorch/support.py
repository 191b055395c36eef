"""What the PyTorch frontend supports, for messages about what it does not."""

SUPPORTED = (
    "supported: elementwise math, comparisons, casts; reductions, argmin and argmax; matrix products, "
    "convolutions, pooling, normalisation, attention; embedding, indexing, gather and scatter; sort, top-k "
    "and cumulative sums; shape ops; buffers updated in place"
)
"""The families of ops; a single op may still lack a form (a dtype, an option), which the reason names."""
