"""`forescribe bench drafts`: drafters beside each other, on one recording or one set of prompts.

Each row has what decides whether drafts pay: tokens per round, acceptance by depth, the price of a
proposal, and the speed-up over plain decoding at the same batch size, beside the equality of all tokens.
"""
