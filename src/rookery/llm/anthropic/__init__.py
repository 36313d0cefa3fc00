"""The wire of Anthropic's Messages API. Start with `wire`."""
