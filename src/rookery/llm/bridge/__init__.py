"""Language models through pydantic-ai: Google, Bedrock, Mistral, Groq and every other provider without a native wire.

The library is an optional extra. `model` and `factory` do without it until the first call; all other modules here
import it, and only this package imports them. Start with `model`.
"""
