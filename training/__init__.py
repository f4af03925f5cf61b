"""How the bundled models and the samples were made: text, synthetic speech, training, evaluation.

Programs, see README.md. The folders are subjects: `sentences`, `speech` (audio), `tiny_en` (the speech
pair), `text` (the text pair), `speakers` (the networks and the PLDA of diarization). Imports nothing of
`benchmarks`.
"""
