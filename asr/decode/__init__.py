"""Speech to tokens: the transcriber, its options and guards, Whisper's token rules, encoding, outcomes."""
