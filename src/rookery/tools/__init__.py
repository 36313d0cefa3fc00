"""The built-in tools, one module per family, and the framework they are written in. Start reading at `framework`."""
