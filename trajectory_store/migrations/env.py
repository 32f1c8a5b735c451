"""Runs the revisions on the connection, and inside the transaction, that `schema.py` hands over."""

from __future__ import annotations

from alembic import context

context.configure(connection=context.config.attributes["connection"])
context.run_migrations()
