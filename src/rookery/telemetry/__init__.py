"""Logs, traces and counters: structured logging, redaction, spans, histograms, HTTP counters, event loop lag."""
