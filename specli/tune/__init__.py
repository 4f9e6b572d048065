"""The best way to draft for a model on this machine, found by measuring.

`session` measures, and asks the others, which only reckon: `candidates` lists what is tried, `replay` tries
drafters that cost nothing on recorded answers, `halving` keeps the better half until time is up, `verdict`
chooses and says why.
"""
