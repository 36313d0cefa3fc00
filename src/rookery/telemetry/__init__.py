"""Logs and counters: structured logging, redaction, histograms, HTTP counters, event loop lag."""
