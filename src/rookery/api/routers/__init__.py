"""The routers: one module per subject, each with a function that makes its router from the API's services."""
