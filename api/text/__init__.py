"""Text requests: OpenAI's completions and chat completions over one text model."""
