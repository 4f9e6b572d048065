"""What speculation brings, measured: the same prompts with and without it, in turns.

`contestants` says what is compared, `contest` runs it, `figures` makes numbers of the runs, `outputs`
compares what was said.
"""
