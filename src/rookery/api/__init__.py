"""The HTTP edge: turns requests into transitions and reads. No SQL, no model calls.

Start with `application`; one router per subject lies in `routers`.
"""
