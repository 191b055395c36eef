"""StableHLO, as text, bytecode or a module in memory, to the Graph: a rule for each op."""
