"""Logs and counters: structured logging, redaction, histograms, event loop lag."""
