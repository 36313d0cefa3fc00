"""`rookery admin`: commands for the operator of an installation."""
