"""The inputs of a language model's methods that say how the next tokens are chosen: what the compiler gives a
plan, and what generation passes to it."""

SETTINGS = ("temperature", "top_p", "min_p", "repetition_penalty")
"""Columns of the input ``settings``, f32."""
DRAWS = ("top_k", "seed", "sequence")
"""Columns of the input ``draws``, i64."""
CANDIDATES = 128
"""The most tokens that a truncated distribution has: the largest top-k, and all that top-p and min-p see."""
RANKED = 20
"""The most tokens a scored method ranks beside the chosen one, with their log-probabilities."""
