"""Debug records: what each model call was sent and answered, for the owner who wants to understand it. Best effort.

Nothing here delays, fails or changes a model call. Start with `recorder.py` (runs and steps) and `writer.py`.
"""
