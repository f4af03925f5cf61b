"""Text requests: OpenAI's completions and chat completions over one text model.

Knows forms, answers and the model's thread; does not know tensors.
"""
