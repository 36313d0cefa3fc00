"""Language models: one protocol, native wires for the common providers, a bridge to the others, an offline model.

Nothing here knows of workers, HTTP endpoints or chats beyond a prompt. Start with `types`, then read one wire.
"""
