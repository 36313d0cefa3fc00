"""`rookery serve`: the server processes, their port and their signals."""
