"""The search for a placement.

`choose` is the entry point and combines the methods: construction heuristics (`construction`), beam search
(`beam`), branching (`branching`), a mixed-integer program (`milp`, solved by `highs`) and local search
(`local`), with bounds that need no search (`initial_bounds`), the objective (`objective`, `loads`) and the
time charged (`clock`).

Beam search keeps states (`states`), expands them by one dispatch (`expand`), tightens their times
(`tighten`), bounds them (`state_bounds`) and drops dominated ones (`dominance`). Its tables (`tables`) are
costs (`cost_tables`), steps with slots for live values (`steps`, `liveness`), longest paths (`path_bound`)
and loads (`load_bound`, `load_tables`, `queue_weights`).
"""
