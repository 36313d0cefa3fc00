"""The wire of OpenAI's Chat Completions API and of the many servers that implement it. Start with `wire`."""
