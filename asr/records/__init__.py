"""Records of a run, one object per recording, created once: in object storage or in a shared folder."""
