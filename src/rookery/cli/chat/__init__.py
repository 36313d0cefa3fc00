"""`rookery chat`: the terminal client, over the public API."""
