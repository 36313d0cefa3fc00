"""The HTTP server of the agent: connections, requests and routes."""
