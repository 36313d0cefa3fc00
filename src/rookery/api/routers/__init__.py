"""The routers: one module per subject. Its function `router` creates the router from the API's services."""
