"""A grid of real processes under faults, and a checker that trusts only the clients' journals and the payloads' marks.

`python -m chaos` (in tests/) runs it. The modules: `history` has the journals and their values, `checker` judges them,
`workload` submits, follows and reads, `grid` starts the processes, `proxy` lies between the parties, `faults` injects.
"""
