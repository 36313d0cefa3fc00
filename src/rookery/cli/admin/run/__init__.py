"""`rookery admin run`: send one message from the terminal and show the turn."""
