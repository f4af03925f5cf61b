"""Keys of a profile in `~/.aws`, as the AWS tools write it: obstore reads the environment only.

Profiles with keys are understood; those that log in (SSO) or assume roles are not, and are left to the
environment. Knows the two files; requests nothing.
"""

from __future__ import annotations

import configparser
import os
from pathlib import Path

KEYS = {
    "aws_access_key_id": "access_key_id",
    "aws_secret_access_key": "secret_access_key",
    "aws_session_token": "session_token",
}


def profile_settings() -> dict[str, str]:
    """The settings of obstore's S3 store by the profile AWS_PROFILE, else `default`; empty if the environment
    has keys itself, or if there is no such profile. A region of the environment comes first."""
    found: dict[str, str] = {}
    name = os.environ.get("AWS_PROFILE") or "default"
    config = _section("AWS_CONFIG_FILE", "config", name if name == "default" else f"profile {name}")
    if "region" in config and not os.environ.keys() & {"AWS_REGION", "AWS_DEFAULT_REGION"}:
        found["region"] = config["region"]
    if os.environ.keys() & {"AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE"}:
        return found
    values = config | _section("AWS_SHARED_CREDENTIALS_FILE", "credentials", name)
    if "aws_access_key_id" in values and "aws_secret_access_key" in values:
        found |= {ours: values[theirs] for theirs, ours in KEYS.items() if theirs in values}
    return found


def _section(variable: str, file: str, name: str) -> dict[str, str]:
    path = Path(os.environ.get(variable) or Path.home() / ".aws" / file)
    parser = configparser.ConfigParser(interpolation=None)
    try:
        parser.read(path, encoding="utf-8")
    except (configparser.Error, UnicodeDecodeError, OSError):
        return {}  # the AWS tools report it
    return dict(parser[name]) if parser.has_section(name) else {}


__all__ = ["profile_settings"]
