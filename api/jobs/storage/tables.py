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
    sa.Column("tenant", sa.String),  # the owner for whom it counts; NULL: it is not counted
    sa.Column("size", sa.BigInteger),  # of the blob in bytes
    sa.Index("forescribe_refs_of", "tenant", "blob", "size"),
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
    sa.Column("place", sa.String),  # where its blobs are; NULL: an earlier version
)

EXPOSED = sa.Table(
    "forescribe_exposed",
    META,
    sa.Column("job", sa.String, primary_key=True),
    sa.Column("executor", sa.String),  # the process in which its work is exposed now
    sa.Column("alone", sa.Boolean, nullable=False),  # nothing else is exposed in that process
    sa.Column("deaths", sa.Integer, nullable=False),  # of such processes, since it last progressed
)

BLOBS = sa.Table(
    "forescribe_blobs",
    META,
    sa.Column("blob", sa.String, primary_key=True),
    sa.Column("state", sa.String, nullable=False, index=True),  # kept, condemned, gone
    sa.Column("at", sa.Float, nullable=False),  # of the last change
)
"""Blobs in object storage (`api.jobs.blob_storage.blob_marks`)."""

UPLOADS = sa.Table(
    "forescribe_uploads",
    META,
    sa.Column("id", sa.String, primary_key=True),
    sa.Column("tenant", sa.String, nullable=False),
    sa.Column("length", sa.BigInteger, nullable=False),
    sa.Column("label", sa.String),
    sa.Column("offset", sa.BigInteger, nullable=False),
    sa.Column("pieces", sa.Integer, nullable=False),  # references of role `piece`
    sa.Column("executor", sa.String),  # the process that writes to it
    sa.Column("token", sa.String),  # of the request that writes to it
    sa.Column("touched_at", sa.Float, nullable=False),
    sa.Column("client", sa.String),  # for whom it counts; NULL: an earlier version, the owner
)
"""Resumable uploads to object storage (`api.uploads.shared_uploads`)."""

TURNS = sa.Table(
    "forescribe_turns",
    META,
    sa.Column("task", sa.String, primary_key=True),
    sa.Column("at", sa.Float, nullable=False),
)
"""When a task that one process does for all was begun last (`task_turns`)."""

ADDED = (
    (JOBS, "warnings", "TEXT"),
    (WORKERS, "place", "VARCHAR"),
    (UPLOADS, "client", "VARCHAR"),
    (REFERENCES, "tenant", "VARCHAR"),
    (REFERENCES, "size", "BIGINT"),
)
"""Columns that earlier versions lack. All may be NULL, so that an earlier version can go on using the
database."""


def create_tables(engine: sa.Engine) -> None:
    """Create missing tables, and add the columns that a database of an earlier version lacks. Several
    processes may do so at once."""
    with engine.begin() as tx:
        if engine.dialect.name == "postgresql":
            tx.exec_driver_sql("SELECT pg_advisory_xact_lock(hashtext('forescribe_tables'))")
        META.create_all(tx)
        for table, column, kind in ADDED:
            if column not in {found["name"] for found in sa.inspect(tx).get_columns(table.name)}:
                tx.exec_driver_sql(f"ALTER TABLE {table.name} ADD COLUMN {column} {kind}")
        for index in REFERENCES.indexes:  # of an added column
            index.create(tx, checkfirst=True)
