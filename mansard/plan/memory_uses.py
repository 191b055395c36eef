"""What memory is used for: the names that the layout, allocations and the memory ledger share."""

from __future__ import annotations

WEIGHTS, STATES, ACTIVATIONS, SCRATCH = "weights", "states", "activations", "scratch"
INPUTS, OUTPUTS, STAGING, CODE = "inputs", "outputs", "staging", "code"
USES = (WEIGHTS, STATES, ACTIVATIONS, SCRATCH, INPUTS, OUTPUTS, STAGING, CODE)
