"""Heads on a target's hidden states, as models: EAGLE-3 and MTP as published."""
