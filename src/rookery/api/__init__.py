"""The HTTP API: turns requests into transitions and reads. It holds no SQL and calls no models.

Start with `application`; `routers` has one module per subject.
"""
