"""Language models: one protocol, native wires for the common providers, a bridge to the others, an offline model.

This package knows prompts, but not workers, HTTP endpoints or chats. Start with `types`, then read one wire.
"""
