"""Many recordings in one run: inputs, outputs, what is done already, and a record for each."""
