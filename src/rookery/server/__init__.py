"""How a port is served: listeners, request timeouts, connection limits, proxy headers."""
