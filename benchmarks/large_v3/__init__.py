"""large-v3 on a CPU: its dimensions and those of its distilled draft, in bfloat16, without published weights.

The models are constructed (`benchmarks.gpu.construction`): times and equality are those of real weights of
these dimensions, and how often drafts are right is set. `python -m benchmarks.large_v3 --help`.
"""
