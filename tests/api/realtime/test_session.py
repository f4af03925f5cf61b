"""A session: what is configured, what comes of audio, and what is refused without an end of it."""

from __future__ import annotations

from tests.api.realtime.sockets import connected, noise


def test_an_item_from_its_first_sample_to_its_text(service) -> None:
    client = service()
    with connected(client) as socket:
        socket.append(noise(2.5))
        socket.commit()
        assert socket.until("completed")["transcript"]
