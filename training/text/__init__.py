"""The bundled text pair: a small chat model and its draft, trained from scratch on one CPU core.

Corpus, tokenizer, training, distillation, export, evaluation and model card. Knows nothing of audio.
"""
