"""Audio files to mono float32 samples at 16 kHz and log-mel features."""
