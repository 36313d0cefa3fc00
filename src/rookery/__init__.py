"""Rookery: a self-hosted server for durable AI agent chats."""

__version__ = "0.1.0"
