"""The schema: made, upgraded, and refused where it is newer."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Engine, create_engine, event, text

from budwood.trajectory_store import SchemaTooNew, Store, StoreError, migrations
from budwood.trajectory_store.migrations import REVISIONS
from budwood.trajectory_store.tables import metadata


def test_migrations_make_the_tables_that_the_code_uses(store_url: str, store: Store) -> None:
    engine = create_engine(store_url)
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, metadata) == []
    engine.dispose()


def test_the_list_of_revisions_is_that_of_the_files() -> None:
    scripts = ScriptDirectory(str(Path(migrations.__file__).parent))
    assert tuple(s.revision for s in scripts.walk_revisions())[::-1] == REVISIONS
    assert scripts.get_current_head() == REVISIONS[-1]


def test_a_newer_schema_is_refused_and_left_alone(store_url: str) -> None:
    Store.open(store_url).close()
    engine = create_engine(store_url)
    with engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    for read_only in (False, True):
        with pytest.raises(SchemaTooNew, match="9999"):
            Store.open(store_url, read_only=read_only)
    with engine.connect() as connection:
        found = connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
    assert found == "9999"
    engine.dispose()


def test_a_migration_that_breaks_off_leaves_what_was_there(store_url: str) -> None:
    """It fails in its middle; then it is mended."""

    def fail(_c: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if statement.strip().startswith("CREATE TABLE tokens"):
            raise RuntimeError("broken off")

    event.listen(Engine, "before_cursor_execute", fail)
    try:
        with pytest.raises(RuntimeError, match="broken off"):
            Store.open(store_url)
    finally:
        event.remove(Engine, "before_cursor_execute", fail)
    engine = create_engine(store_url)
    with engine.connect() as connection:
        assert engine.dialect.get_table_names(connection) == []
    engine.dispose()
    Store.open(store_url).close()


@pytest.mark.parametrize("names", [("mine",), ("alembic_version", "call")])
def test_another_programs_database_is_refused_and_left_alone(
    store_url: str, names: tuple[str, ...]
) -> None:
    engine = create_engine(store_url)
    with engine.begin() as connection:
        for name in names:
            connection.execute(text(f"CREATE TABLE {name} (version_num TEXT)"))
    path = engine.url.database if engine.dialect.name == "sqlite" else None
    before = Path(path).read_bytes() if path else b""
    for read_only in (False, True):
        with pytest.raises(StoreError, match="another program"):
            Store.open(store_url, read_only=read_only)
    with engine.connect() as connection:
        assert sorted(engine.dialect.get_table_names(connection)) == sorted(names)
    engine.dispose()
    assert not path or Path(path).read_bytes() == before


def test_many_that_open_an_empty_database_at_once_make_it_once(store_url: str) -> None:
    failed: list[Exception] = []

    def open_and_write() -> None:
        try:
            with Store.open(store_url) as store:
                store.open_run("r")
        except StoreError as error:
            failed.append(error)

    threads = [threading.Thread(target=open_and_write) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    with Store.open(store_url, read_only=True) as store:
        assert len(store.runs()) == 6


def test_no_password_is_in_a_message() -> None:
    with pytest.raises(StoreError) as caught:
        Store.open("postgresql://me:hunter22@127.0.0.1:1/none", busy_s=0.1)
    assert "hunter22" not in str(caught.value)
