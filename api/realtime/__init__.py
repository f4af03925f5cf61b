"""`/v1/realtime`: live transcription over a WebSocket, in OpenAI's Realtime transcription sessions."""
