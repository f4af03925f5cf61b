"""OpenAI's completions and chat completions over `forescribe.text`.

Knows forms, answers and the generator's thread; nothing of tensors or of speech.
"""
