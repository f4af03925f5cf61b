"""The tables of the job database. Holds no transcript text.

Names of tables and columns are part of the file format: databases of earlier versions must still open.
"""

from __future__ import annotations

import sqlalchemy as sa

META = sa.MetaData()

JOBS = sa.Table(
    "forescribe_jobs",
    META,
    sa.Column("id", sa.String, primary_key=True),
    sa.Column("tenant", sa.String, nullable=False),  # the owner: the name of the API key
    sa.Column("state", sa.String, nullable=False),
    sa.Column("run", sa.Integer, nullable=False),
    sa.Column("kind", sa.String, nullable=False),
    sa.Column("label", sa.String),
    sa.Column("created_at", sa.Float, nullable=False),
    sa.Column("started_at", sa.Float),
    sa.Column("finished_at", sa.Float),
    sa.Column("total_s", sa.Float, nullable=False),
    sa.Column("done_s", sa.Float, nullable=False),
    sa.Column("options", sa.Text, nullable=False),
    sa.Column("error_code", sa.String),
    sa.Column("error_message", sa.String),
    sa.Column("hook_url", sa.String),
    sa.Column("hook_secret", sa.String),
    sa.Column("hook_state", sa.String),
    sa.Column("hook_tries", sa.Integer, nullable=False, default=0),
    sa.Column("crashes", sa.Integer, nullable=False, default=0),
    sa.Column("warnings", sa.Text),  # of the transcript; NULL: none, or none yet
    sa.Index("forescribe_jobs_of", "tenant", "created_at", "id"),
    sa.Index("forescribe_jobs_state", "state"),
)

REFERENCES = sa.Table(
    "forescribe_refs",
    META,
    sa.Column("job", sa.String, primary_key=True),
    sa.Column("role", sa.String, primary_key=True),  # audio, form, plan, group, spoken, result
    sa.Column("k", sa.Integer, primary_key=True),
    sa.Column("blob", sa.String, nullable=False, index=True),
)

ENTRIES = sa.Table(
    "forescribe_entries",
    META,
    sa.Column("job", sa.String, primary_key=True),
    sa.Column("n", sa.Integer, primary_key=True),
    sa.Column("kind", sa.String, nullable=False),
    sa.Column("data", sa.Text, nullable=False),
)

KEYS = sa.Table(
    "forescribe_idempotency",
    META,
    sa.Column("tenant", sa.String, primary_key=True),
    sa.Column("key", sa.String, primary_key=True),
    sa.Column("fingerprint", sa.String, nullable=False),
    sa.Column("job", sa.String, nullable=False),
    sa.Column("created_at", sa.Float, nullable=False),
)

WORKERS = sa.Table(
    "forescribe_workers",
    META,
    sa.Column("executor", sa.String, primary_key=True),
    sa.Column("beat", sa.Integer, nullable=False),
    sa.Column("work", sa.Text, nullable=False),
)

EXPOSED = sa.Table(
    "forescribe_exposed",
    META,
    sa.Column("job", sa.String, primary_key=True),
    sa.Column("executor", sa.String),  # the process in which its work is exposed now
    sa.Column("alone", sa.Boolean, nullable=False),  # nothing else is exposed in that process
    sa.Column("deaths", sa.Integer, nullable=False),  # of such processes, since it last progressed
)


def add_missing_columns(engine: sa.Engine) -> None:
    """Add the columns that a database of an earlier version lacks. All may be NULL, so that the earlier
    version can go on using it."""
    existing = {column["name"] for column in sa.inspect(engine).get_columns(JOBS.name)}
    if "warnings" not in existing:
        condition = "IF NOT EXISTS " if engine.dialect.name == "postgresql" else ""
        with engine.begin() as tx:
            tx.exec_driver_sql(f"ALTER TABLE {JOBS.name} ADD COLUMN {condition}warnings TEXT")
