"""The pure rules of a chat: states, transitions, parts, tool calls, errors.

No module does I/O, reads the clock or uses random numbers. `tests/test_layers.py` checks the imports. Read `states` and
`transitions` first.
"""
