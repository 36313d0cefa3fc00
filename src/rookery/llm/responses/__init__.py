"""The wire of OpenAI's Responses API. Start with `wire`."""
