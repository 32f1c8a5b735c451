"""The first schema."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

_big = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_open = sa.text("seq IS NULL")


def _text(name: str, *args: Any, **kw: Any) -> sa.Column[Any]:
    return sa.Column(name, sa.Text, *args, **kw)


def _bytes(name: str, **kw: Any) -> sa.Column[Any]:
    return sa.Column(name, sa.LargeBinary, **kw)


def _big_int(name: str, **kw: Any) -> sa.Column[Any]:
    return sa.Column(name, sa.BigInteger, **kw)


def _int(name: str, **kw: Any) -> sa.Column[Any]:
    return sa.Column(name, sa.Integer, **kw)


def _bool(name: str) -> sa.Column[Any]:
    return sa.Column(name, sa.Boolean, nullable=False)


def upgrade() -> None:
    """Create all tables."""
    op.create_table(
        "counter",
        _text("name", nullable=False),
        _big_int("value", nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_counter"),
    )
    op.execute("INSERT INTO counter (name, value) VALUES ('call', 0)")
    op.create_table(
        "writer",
        sa.Column("id", _big, nullable=False, autoincrement=True),
        _text("host", nullable=False),
        _int("pid", nullable=False),
        _big_int("started_at", nullable=False),
        _big_int("ended_at"),
        sa.PrimaryKeyConstraint("id", name="pk_writer"),
    )
    op.create_table(
        "run",
        _text("id", nullable=False),
        _text("name", nullable=False),
        _text("purpose", nullable=False),
        _text("history", nullable=False),
        _text("settings", nullable=False),
        _text("versions", nullable=False),
        _big_int("seed"),
        _big_int("created_at", nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_run"),
    )
    _rollouts()
    _contents()
    _calls()
    op.create_table(
        "tokens",
        sa.Column("seq", _big, nullable=False, autoincrement=False),
        _big_int("base"),
        _int("common", nullable=False),
        _int("depth", nullable=False),
        _int("n_prompt", nullable=False),
        _int("n_out", nullable=False),
        _int("n_logprobs", nullable=False),
        _bytes("suffix", nullable=False),
        _bytes("out", nullable=False),
        _bytes("logprobs", nullable=False),
        _bytes("checksum", nullable=False),
        sa.PrimaryKeyConstraint("seq", name="pk_tokens"),
    )


def _rollouts() -> None:
    op.create_table(
        "rollout",
        _text("id", nullable=False),
        _text("run_id", nullable=False),
        _text("group_id"),
        _int("attempt", nullable=False),
        _text("task"),
        _text("harness"),
        _text("harness_version"),
        _text("model"),
        _bytes("key_hash"),
        _text("state", nullable=False),
        _text("labels", nullable=False),
        _text("budgets", nullable=False),
        _big_int("created_at", nullable=False),
        _big_int("expires_at"),
        _big_int("closed_at"),
        _text("replay_of"),
        sa.Column("schema_version", sa.SmallInteger, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_rollout"),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name="fk_rollout_run_id"),
        sa.UniqueConstraint("key_hash", name="uq_rollout_key_hash"),
    )
    op.create_index("ix_rollout_run_id", "rollout", ["run_id"])
    op.create_table(
        "outcome",
        _text("rollout_id", nullable=False),
        _int("version", nullable=False, autoincrement=False),
        sa.Column("reward", sa.Float(53)),
        _text("failure_class", nullable=False),
        _text("cause"),
        _text("by", nullable=False),
        _big_int("created_at", nullable=False),
        sa.PrimaryKeyConstraint("rollout_id", "version", name="pk_outcome"),
        sa.ForeignKeyConstraint(["rollout_id"], ["rollout.id"], name="fk_outcome_rollout_id"),
    )
    op.create_table(
        "lane",
        _text("id", nullable=False),
        _text("rollout_id", nullable=False),
        _text("kind", nullable=False),
        _int("segment", nullable=False),
        _text("parent_lane"),
        _bool("offers_tools"),
        _bytes("agent_key", nullable=False),
        _big_int("created_at", nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_lane"),
        sa.ForeignKeyConstraint(["rollout_id"], ["rollout.id"], name="fk_lane_rollout_id"),
    )
    op.create_index("ix_lane_rollout_id", "lane", ["rollout_id"])


def _contents() -> None:
    op.create_table(
        "blob",
        _bytes("hash", nullable=False),
        _bytes("packed", nullable=False),
        sa.PrimaryKeyConstraint("hash", name="pk_blob"),
    )
    op.create_table(
        "message",
        _bytes("hash", nullable=False),
        _bytes("parent"),
        _bytes("blob", nullable=False),
        _int("depth", nullable=False),
        _bool("has_secret"),
        _bytes("digest"),
        sa.PrimaryKeyConstraint("hash", name="pk_message"),
        sqlite_with_rowid=False,
    )


def _calls() -> None:
    op.create_table(
        "call",
        _text("id", nullable=False),
        _text("rollout_id", nullable=False),
        _big_int("seq"),
        _big_int("writer", nullable=False),
        _text("state", nullable=False),
        _text("dialect", nullable=False),
        _text("lane", nullable=False),
        _text("parent"),
        _text("edit_of"),
        _int("turn_index", nullable=False),
        _text("prompt_mode"),
        _bool("exact"),
        _text("reasons"),
        _bytes("body_hash", nullable=False),
        _big_int("body_size", nullable=False),
        _bytes("envelope", nullable=False),
        _bytes("tools"),
        _bytes("message"),
        _int("n_messages"),
        _bytes("separators"),
        _bool("stream"),
        _text("asked_model"),
        _bytes("client", nullable=False),
        _bytes("origin"),
        _text("usage"),
        _text("finish"),
        _big_int("stop_id"),
        _big_int("policy_before"),
        _big_int("policy_after"),
        _bytes("template_key"),
        _text("timings"),
        _text("flags"),
        _bool("echoed"),
        _int("n_prompt"),
        _int("n_out"),
        _bool("has_logprobs"),
        _bytes("reply"),
        _bytes("reply_digest"),
        _bytes("chain_key"),
        _bytes("bare_key"),
        _bytes("raw_reply"),
        _text("failure_class", nullable=False),
        _text("cause"),
        _big_int("created_at", nullable=False),
        _big_int("finished_at"),
        sa.PrimaryKeyConstraint("id", name="pk_call"),
        sa.ForeignKeyConstraint(["rollout_id"], ["rollout.id"], name="fk_call_rollout_id"),
        sa.UniqueConstraint("seq", name="uq_call_seq"),
    )
    op.create_index("ix_call_rollout_id_seq", "call", ["rollout_id", "seq"])
    op.create_index("ix_call_open", "call", ["writer"], sqlite_where=_open, postgresql_where=_open)
