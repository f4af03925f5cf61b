"""The HTTP service over `asr`, `diarize` and `text`: requests and answers, without tensors."""
