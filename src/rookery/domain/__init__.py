"""Pure rules and values: no I/O, no clock; imports only the standard library, msgspec and PyYAML's parser."""
