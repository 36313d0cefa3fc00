"""Anthropic's Messages API: the request, the stream, and the wire format that joins them."""
