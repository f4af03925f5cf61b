"""The CTC head of a Whisper encoder whose labels are the target's own word pieces.

`label` decodes synthetic windows with the target and stores encoder states beside the transcripts;
`train` fits the head to them, with the encoder frozen.
"""
