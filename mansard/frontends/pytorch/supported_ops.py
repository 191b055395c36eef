"""The supported families of ops, for error messages about unsupported ones."""

SUPPORTED = (
    "supported: elementwise math, comparisons, casts; reductions, argmin and argmax; matrix products, "
    "convolutions, pooling, normalisation, attention; embedding, indexing, gather and scatter; sort, top-k "
    "and cumulative sums; shape ops; buffers updated in place"
)
"""The families of ops; a particular op may still lack a variant (a dtype, an option), which the reason
names."""
