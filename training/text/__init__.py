"""The bundled text pair: a small chat model and its draft, made from nothing on one CPU core."""
