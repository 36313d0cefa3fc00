"""The HTTP API: converts requests to transitions and reads. It has no SQL and calls no models.

Start with `application`; `routers` has one module per subject.
"""
