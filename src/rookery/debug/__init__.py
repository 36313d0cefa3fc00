"""Debug records: the requests and answers of model calls, for the owner of a chat. Recording is best effort.

Recording never delays, fails or changes a model call. Start with `recorder.py` (runs and steps) and `writer.py`.
"""
