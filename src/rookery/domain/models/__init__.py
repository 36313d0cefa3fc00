"""Values that describe model providers and models: types, options, context windows."""
