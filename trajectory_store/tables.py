"""The tables, the same on SQLite and PostgreSQL.

What repeats is stored once: a `blob` is named by its content, a `message` row by its content and
all that came before it, so a conversation that grows adds one row a new message and a call points
at its last one. `tokens` rows point at the row whose ids they extend. `call.seq` is drawn from
`counter` inside the transaction that writes the result; the lock on that row makes the order of
seq the order of commits, in all processes that share the database.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson
from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Dialect,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    Table,
    Text,
    TypeDecorator,
    text,
)

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_name)s",
        "uq": "uq_%(table_name)s_%(column_0_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "pk": "pk_%(table_name)s",
    }
)
BigInt = BigInteger().with_variant(Integer(), "sqlite")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class Moment(TypeDecorator[datetime]):
    """An aware time, kept as microseconds since 1970."""

    impl = BigInteger
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> Any:
        """Return the microseconds."""
        return None if value is None else (value - _EPOCH) // _MICROSECOND

    def process_result_value(self, value: Any, dialect: Dialect) -> datetime | None:
        """Return the time, in UTC."""
        return None if value is None else _EPOCH + timedelta(microseconds=value)


class Json(TypeDecorator[Any]):
    """A JSON value as text; what orjson refuses (surrogates, large integers) goes the slow way."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> Any:
        """Return the text."""
        return None if value is None else dump_json(value).decode()

    def process_result_value(self, value: Any, dialect: Dialect) -> Any:
        """Return the value."""
        return None if value is None else load_json(value)


def dump_json(value: Any) -> bytes:
    """Return compact JSON; lone surrogates survive as escapes."""
    try:
        return orjson.dumps(value)
    except TypeError:
        return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()


def load_json(text: bytes | str) -> Any:
    """Return the value that `dump_json` was given."""
    try:
        return orjson.loads(text)
    except ValueError:
        return json.loads(text)


def _rollout(**kw: Any) -> Column[Any]:
    return Column("rollout_id", Text, ForeignKey("rollout.id"), nullable=False, **kw)


counter = Table(
    "counter",
    metadata,
    Column("name", Text, primary_key=True),
    Column("value", BigInteger, nullable=False),
)
writer = Table(
    "writer",
    metadata,
    Column("id", BigInt, primary_key=True),
    Column("host", Text, nullable=False),
    Column("pid", Integer, nullable=False),
    Column("started_at", Moment, nullable=False),
    Column("ended_at", Moment),
)
run = Table(
    "run",
    metadata,
    Column("id", Text, primary_key=True),
    Column("name", Text, nullable=False),
    Column("purpose", Text, nullable=False),
    Column("history", Text, nullable=False),
    Column("settings", Json, nullable=False),
    Column("versions", Json, nullable=False),
    Column("seed", BigInteger),
    Column("created_at", Moment, nullable=False),
)
rollout = Table(
    "rollout",
    metadata,
    Column("id", Text, primary_key=True),
    Column("run_id", Text, ForeignKey("run.id"), nullable=False, index=True),
    Column("group_id", Text),
    Column("attempt", Integer, nullable=False),
    Column("task", Text),
    Column("harness", Text),
    Column("harness_version", Text),
    Column("model", Text),
    Column("key_hash", LargeBinary, unique=True),
    Column("state", Text, nullable=False),
    Column("labels", Json, nullable=False),
    Column("budgets", Json, nullable=False),
    Column("created_at", Moment, nullable=False),
    Column("expires_at", Moment),
    Column("closed_at", Moment),
    Column("replay_of", Text),
    Column("schema_version", SmallInteger, nullable=False),
)
outcome = Table(
    "outcome",
    metadata,
    _rollout(primary_key=True),
    Column("version", Integer, primary_key=True, autoincrement=False),
    Column("reward", Float(53)),
    Column("failure_class", Text, nullable=False),
    Column("cause", Text),
    Column("by", Text, nullable=False),
    Column("created_at", Moment, nullable=False),
)
lane = Table(
    "lane",
    metadata,
    Column("id", Text, primary_key=True),
    _rollout(index=True),
    Column("kind", Text, nullable=False),
    Column("segment", Integer, nullable=False),
    Column("parent_lane", Text),
    Column("offers_tools", Boolean, nullable=False),
    Column("agent_key", LargeBinary, nullable=False),
    Column("created_at", Moment, nullable=False),
)
blob = Table(
    "blob",
    metadata,
    Column("hash", LargeBinary, primary_key=True),
    Column("packed", LargeBinary, nullable=False),
)
message = Table(
    "message",
    metadata,
    Column("hash", LargeBinary, primary_key=True),
    Column("parent", LargeBinary),
    Column("blob", LargeBinary, nullable=False),
    Column("depth", Integer, nullable=False),
    Column("has_secret", Boolean, nullable=False),
    Column("digest", LargeBinary),
    sqlite_with_rowid=False,
)
call = Table(
    "call",
    metadata,
    Column("id", Text, primary_key=True),
    _rollout(),
    Column("seq", BigInteger, unique=True),
    Column("writer", BigInteger, nullable=False),
    Column("state", Text, nullable=False),
    Column("dialect", Text, nullable=False),
    Column("lane", Text, nullable=False),
    Column("parent", Text),
    Column("edit_of", Text),
    Column("turn_index", Integer, nullable=False),
    Column("prompt_mode", Text),
    Column("exact", Boolean, nullable=False),
    Column("reasons", Json),
    Column("body_hash", LargeBinary, nullable=False),
    Column("body_size", BigInteger, nullable=False),
    Column("envelope", LargeBinary, nullable=False),
    Column("tools", LargeBinary),
    Column("message", LargeBinary),
    Column("n_messages", Integer),
    Column("separators", LargeBinary),
    Column("stream", Boolean, nullable=False),
    Column("asked_model", Text),
    Column("client", LargeBinary, nullable=False),
    Column("origin", LargeBinary),
    Column("usage", Json),
    Column("finish", Text),
    Column("stop_id", BigInteger),
    Column("policy_before", BigInteger),
    Column("policy_after", BigInteger),
    Column("template_key", LargeBinary),
    Column("timings", Json),
    Column("flags", Json),
    Column("echoed", Boolean, nullable=False),
    Column("n_prompt", Integer),
    Column("n_out", Integer),
    Column("has_logprobs", Boolean, nullable=False),
    Column("reply", LargeBinary),
    Column("reply_digest", LargeBinary),
    Column("chain_key", LargeBinary),
    Column("bare_key", LargeBinary),
    Column("raw_reply", LargeBinary),
    Column("failure_class", Text, nullable=False),
    Column("cause", Text),
    Column("created_at", Moment, nullable=False),
    Column("finished_at", Moment),
    Index("ix_call_rollout_id_seq", "rollout_id", "seq"),
    Index(
        "ix_call_open",
        "writer",
        sqlite_where=text("seq IS NULL"),
        postgresql_where=text("seq IS NULL"),
    ),
)
tokens = Table(
    "tokens",
    metadata,
    Column("seq", BigInt, primary_key=True, autoincrement=False),
    Column("base", BigInteger),
    Column("common", Integer, nullable=False),
    Column("depth", Integer, nullable=False),
    Column("n_prompt", Integer, nullable=False),
    Column("n_out", Integer, nullable=False),
    Column("n_logprobs", Integer, nullable=False),
    Column("suffix", LargeBinary, nullable=False),
    Column("out", LargeBinary, nullable=False),
    Column("logprobs", LargeBinary, nullable=False),
    Column("checksum", LargeBinary, nullable=False),
)
