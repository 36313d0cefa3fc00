"""What a replica tells about itself in numbers. Reads what other parts count, at the moment somebody asks.

Nothing below imports this package: lower layers count for themselves, and do not know who reads it. Start at
`export.py`, whose tables hold every family there is.
"""
