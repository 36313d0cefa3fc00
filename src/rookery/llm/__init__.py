"""Language models: one protocol, native wires for the common providers, a bridge to all others, and an offline model.

This package knows prompts, but no workers, API endpoints or chats. Start with `types`, then read one wire.
"""
