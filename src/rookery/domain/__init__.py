"""Pure rules and values: no I/O, no clock; the standard library and msgspec only."""
