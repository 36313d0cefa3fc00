"""The relay of live parts between replicas: one link to each other replica, and one copy of each episode on it.

The replica with viewers dials (`hub`, `link`), and the replica that runs the chat serves its part buffer (`server`).
The relay changes no data. A lost link only pauses previews.
"""
