"""The pure rules of a chat: states, transitions, parts, tool calls, errors.

No module does I/O, reads the clock or uses random numbers. Only the standard library and msgspec may be imported; a
test checks this. Read `states` and `transitions` first.
"""
