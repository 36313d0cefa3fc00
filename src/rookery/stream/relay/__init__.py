"""Live parts between replicas: one link to each other replica, one copy of each episode on it, however many watch.

The side of the viewers dials (`hub`, `link`), the side of the owner serves its part buffer (`server`). Nothing here
changes anything: a lost link costs the preview a pause.
"""
