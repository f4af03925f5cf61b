"""How the bundled models and the samples were made: text, synthetic speech, training, evaluation.

Programs, see README.md. The folders are subjects: `sentences`, `speech` (audio), `demo` (the speech pair),
`text` (the text pair), `speakers` (the encoder and the PLDA of diarization). Imports nothing of
`benchmarks`.
"""
