"""The bridge: language models over pydantic-ai, for Google, Bedrock, Mistral and all providers without a native wire.

The library is an optional extra. `model` and `factory` import it with the first call; all other modules import it
directly, and only this package imports them. Start with `model`.
"""
