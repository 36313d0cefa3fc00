"""OpenAI's Chat Completions API, and the many servers that speak it: request, stream, and the wire of both."""
