"""Trees of drafts: a drafter that grows them, the rule for sampled ones, and what they are worth.

Not a part of the product: they gained nothing over chains (docs/methods/trees.md).
"""
