"""OpenAI's Chat Completions API, and the many servers that implement it: the request, the stream and the wire
format."""
