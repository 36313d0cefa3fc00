"""The relay of live parts between replicas: one link to each other replica, and one copy of each episode on it.

The viewers' side dials (`hub`, `link`); the owner's side serves its part buffer (`server`). The relay changes no data:
a lost link only pauses previews.
"""
