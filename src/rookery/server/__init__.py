"""The HTTP server: listeners, request timeouts, connection limits, proxy headers."""
