"""The pure rules of a chat: states, transitions, parts, tool calls, errors.

Nothing here does I/O, reads the clock or draws random numbers, and nothing but the standard library and
msgspec may be imported; a test enforces it. Start with `states` and `transitions`.
"""
