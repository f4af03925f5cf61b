"""A one-pass block drafter for a Whisper target, and a CTC head, trained on what the target writes itself.

The target is frozen and decodes once, with a drafter that notes its tapped states. Knows the bundled pair's
folders and the clips of `training.speech`; nothing of how the head drafts.
"""
