"""Records of a run in object storage, one object per recording, created once."""
