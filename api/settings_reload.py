"""New settings without a restart: keys, limits and times, read again at SIGHUP or when the file changes.

    reloader = Reloader(settings, apply)
    reloader.install()                      # SIGHUP, and the file, if `watch_settings_s` is set

The settings object of the running service is changed in place, one field at a time, so every part of the
service sees the new values at its next use, and requests in progress go on. What needs a restart is named in
the log and keeps its value; a file with a mistake changes nothing. Does not know what settings mean.
"""

from __future__ import annotations

import json
import logging
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from forescribe.asr.errors import UsageError

from .settings import Settings

log = logging.getLogger("forescribe.api")

RELOADABLE = (
    "api_keys",
    "aliases",
    "max_upload_bytes",
    "max_audio_s",
    "max_requests",
    "max_uploads",
    "max_uploads_per_address",
    "max_open_uploads_per_key",
    "max_requests_per_key",
    "max_streams",
    "max_streams_per_key",
    "max_queued_audio_s",
    "timeout_s",
    "decode_timeout_s",
    "decode_memory_bytes",
    "max_queued_jobs_s",
    "max_jobs_per_key",
    "min_free_bytes",
    "audio_retention_s",
    "result_retention_s",
    "upload_retention_s",
    "idempotency_retention_s",
    "webhook_secret",
    "max_files_per_key",
    "file_retention_s",
    "max_batch_bytes",
    "max_batch_lines",
    "max_batches_per_key",
    "batch_open_jobs",
    "audio_urls",
    "audio_url_networks",
    "audio_url_timeout_s",
)
"""Settings that are read at each use. All others are built into the process: address, models, threads."""


@dataclass(frozen=True)
class Reloaded:
    """What a reload has changed, and what it would have changed with a restart, by name."""

    changed: tuple[str, ...] = ()
    needs_restart: tuple[str, ...] = ()
    refused: str | None = None  # why nothing was changed


class Reloader:
    """Reloads the settings of this process. `apply` is called once they have changed; `own` are settings that
    the process has been given by its supervisor, whatever the file says."""

    def __init__(
        self, settings: Settings, apply: Callable[[], None], own: tuple[str, ...] = ()
    ) -> None:
        self.settings, self.apply, self.own = settings, apply, own
        self._lock, self._stopped = threading.Lock(), threading.Event()

    def install(self) -> None:
        """Reload at SIGHUP and, if the settings say so, when the file changes. Without a settings file
        nothing can change, and SIGHUP ends the process as before. Call it on the main thread."""
        file = None if self.settings.source is None else self.settings.source.file
        if file is None:
            return
        signal.signal(signal.SIGHUP, self._signalled)
        if self.settings.watch_settings_s:
            threading.Thread(
                target=self._watch, args=(file, _mark(file)), name="settings", daemon=True
            ).start()

    def stop(self) -> None:
        """Watch the file no longer."""
        self._stopped.set()

    def reload(self) -> Reloaded:
        """Read the settings again, use what can be changed, and log the names."""
        with self._lock:
            result = self._reload()
        if result == Reloaded():
            self._log("settings unchanged")
            return result
        if result.refused is not None:
            self._log("settings not reloaded", reason=result.refused)
        else:
            self._log(
                "settings reloaded",
                changed=list(result.changed),
                needs_restart=list(result.needs_restart),
            )
        return result

    def _reload(self) -> Reloaded:
        source, live = self.settings.source, self.settings
        if source is None:
            return Reloaded(refused="the settings come from the environment alone")
        try:
            new = source.load()
            differing = [
                name
                for name in type(live).model_fields
                if getattr(new, name) != getattr(live, name)
            ]
            changed = {name: getattr(new, name) for name in differing if name in RELOADABLE}
            _check_keys(live, new)
            live.model_copy(update=changed).check_together()
        except UsageError as error:
            return Reloaded(refused=error.message)
        except ValueError as error:
            return Reloaded(refused=str(error))
        except OSError as error:  # the file is being replaced
            return Reloaded(refused=f"the settings file cannot be read ({error.strerror})")
        for name, value in changed.items():
            object.__setattr__(live, name, value)  # frozen for everybody else
        if changed:
            self.apply()
        rest = [name for name in differing if name not in RELOADABLE and name not in self.own]
        return Reloaded(tuple(changed), tuple(rest))

    def _signalled(self, number: int, frame: FrameType | None) -> None:
        threading.Thread(target=self.reload, name="reload").start()

    def _watch(self, file: Path, seen: tuple[int, int, int] | None) -> None:
        """`seen` is the file's mark before the thread began: a change while it starts is one."""
        while not self._stopped.wait(self.settings.watch_settings_s):
            now = _mark(file)
            if now != seen:
                seen = now
                self.reload()

    def _log(self, event: str, **facts: object) -> None:
        log.info(json.dumps({"event": event, **facts}))


def _check_keys(live: Settings, new: Settings) -> None:
    """Raises UsageError where a service would change between one with keys and one without: which host
    names it answers to was decided at its start."""
    if bool(live.api_keys) != bool(new.api_keys):
        raise UsageError("api_keys: the first key, and the removal of the last one, need a restart")


def _mark(file: Path) -> tuple[int, int, int] | None:
    """What changes with a file; None if it is not there. Links are followed, as Kubernetes replaces them."""
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
