"""HTTP inside the workspace: connections, requests, routes."""
