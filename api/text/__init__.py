"""Text models: `forescribe generate` and OpenAI's completions, over `text.generator`."""
