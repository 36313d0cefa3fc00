"""Traces and metrics for OpenTelemetry: `spans` is the interface of all packages, `otel` exports to a collector.

`spans` does not import OpenTelemetry, and without an exporter its functions do nothing. `names` has every name.
"""
