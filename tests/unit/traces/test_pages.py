"""Columns straight from SQLite's pages must be what SQLite itself answers, or the reader must step aside."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perfgate.traces import _pages, _records
from perfgate.traces._pages import MISSING
from perfgate.traces._sqlite import Database

INTEGERS = st.one_of(
    st.none(),
    st.integers(-1, 2),
    st.integers(-(2**63) + 1, 2**63 - 1),
    st.sampled_from([2**7 - 1, 2**7, -(2**7), 2**15, 2**23, 2**31, 2**47, -(2**47) - 1, 2**63 - 1]),
)
ANYTHING = st.one_of(
    INTEGERS, st.floats(allow_nan=False), st.binary(max_size=9), st.text(max_size=9).filter(lambda text: "\x00" not in text)
)
TEXTS = st.one_of(st.none(), st.sampled_from(["", "a", "aten::mm", "x" * 300, "ü" * 40, "y" * 20_000]), st.text(max_size=80))


def encodable(text):
    return text is None or text.encode("utf-8", "ignore").decode() == text


def made(path, rows, *, page_size=4096, declared="a INTEGER, b INTEGER, c TEXT, d INTEGER", pragma=""):
    path.unlink(missing_ok=True)
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute(f"PRAGMA page_size = {page_size}")
        database.execute("PRAGMA synchronous = OFF")
        database.execute(pragma or "PRAGMA user_version = 1")
        database.execute(f"CREATE TABLE t ({declared})")
        database.execute("BEGIN")
        database.executemany(f"INSERT INTO t VALUES ({', '.join('?' * len(declared.split(',')))})", rows)
        database.execute("COMMIT")
    return path


def columns(path, *, pages, integers=("a", "d", "absent"), texts=("c",)):
    with Database(path, pages=pages) as database:
        found = database.columns("t", integers, texts)
    answer = {name: found[name].values.tolist() for name in integers}
    for name in texts:
        answer[name] = [None if code < 0 else found[name].texts[code] for code in found[name].values]
    return sorted(zip(*answer.values(), strict=True), key=repr)


def only_pages(monkeypatch):
    monkeypatch.setattr("perfgate.traces._sqlite.Database._by_rows", None)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.tuples(INTEGERS, ANYTHING, TEXTS.filter(encodable), INTEGERS), max_size=60),
    st.sampled_from([512, 1024, 4096, 65536]),
)
def test_any_table(tmp_path, rows, page_size):
    path = made(tmp_path / "t.sqlite", rows, page_size=page_size)

    assert columns(path, pages=False) == columns(path, pages=True)


@pytest.mark.parametrize("page_size", [512, 4096, 65536])
def test_many_rows_over_several_levels(tmp_path, monkeypatch, page_size):
    rows = [(number, number**3, f"name {number % 97}", -number) for number in range(30_000)]
    path = made(tmp_path / "t.sqlite", rows, page_size=page_size)
    slow = columns(path, pages=False)
    only_pages(monkeypatch)

    assert slow == columns(path, pages=True)


def test_where_files_are_not_read_into_buffers(tmp_path, monkeypatch):
    path = made(tmp_path / "t.sqlite", [(number, 1, f"{number}", number) for number in range(3000)])
    slow = columns(path, pages=False)
    monkeypatch.delattr("os.preadv")
    only_pages(monkeypatch)

    assert slow == columns(path, pages=True)


def test_rows_that_spill_over_their_page(tmp_path, monkeypatch):
    rows = [(number, 1, "k" * (1 + 997 * (number % 20)), number) for number in range(200)]
    path = made(tmp_path / "t.sqlite", rows)
    slow = columns(path, pages=False)
    only_pages(monkeypatch)

    assert slow == columns(path, pages=True)


def test_deleted_and_updated_rows(tmp_path, monkeypatch):
    path = made(tmp_path / "t.sqlite", [(number, number, str(number), number) for number in range(5_000)])
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("DELETE FROM t WHERE a % 3 = 0")
        database.execute("UPDATE t SET d = a * 1000000000, c = c || 'long' WHERE a % 5 = 0")
    slow = columns(path, pages=False)
    only_pages(monkeypatch)

    assert slow == columns(path, pages=True)


@pytest.mark.parametrize("first", [1, 1000, -7])
@pytest.mark.parametrize(
    "change", ["SELECT 1", "DELETE FROM t WHERE a % 30 = 0", "UPDATE t SET c = c || printf('%.5000c', 'k') WHERE a = 700"]
)
def test_many_portions(tmp_path, monkeypatch, first, change):
    rows = [(number, 7, str(number % 9), None if number < 4000 else 5 + (number > 8000)) for number in range(9_000)]
    path = made(tmp_path / "t.sqlite", [])
    with closing(sqlite3.connect(path)) as database, database:
        database.executemany(
            "INSERT INTO t (rowid, a, b, c, d) VALUES (?, ?, ?, ?, ?)", ((first + row[0], *row) for row in rows)
        )
        database.execute(change)
    slow = columns(path, pages=False, integers=("a", "b", "d"))
    only_pages(monkeypatch)
    monkeypatch.setattr(_pages, "_MANY", 1)
    monkeypatch.setattr(_pages, "_MOST_AT_ONCE", 8192)

    assert slow == columns(path, pages=True, integers=("a", "b", "d"))


def test_the_rows_of_many_portions_keep_their_order(tmp_path, monkeypatch):
    path = made(tmp_path / "t.sqlite", [(number, 7, "", number % 2) for number in range(9_000)])
    monkeypatch.setattr(_pages, "_MANY", 1)
    monkeypatch.setattr(_pages, "_MOST_AT_ONCE", 8192)
    with Database(path) as database:
        found = database.columns("t", ("a", "b"))

    assert list(range(9_000)) == found["a"].values.tolist()
    assert [7] * 9_000 == found["b"].values.tolist()


def test_a_field_of_few_or_of_many_widths(tmp_path, monkeypatch):
    widths = [None, 0, 1, 5, 300, 70_000, 20_000_000, 2**40, 2**60]
    rows = [(number, 0, "t", widths[number % (2 if number < 500 else 9)]) for number in range(1000)]
    path = made(tmp_path / "t.sqlite", rows)
    slow = columns(path, pages=False)
    only_pages(monkeypatch)

    assert slow == columns(path, pages=True)


def test_headers_of_several_lengths_that_differ_at_their_ends(tmp_path, monkeypatch):
    lengths, lasts = (3, 70, 9000 // 3), (0, 1, 5, 300, 70_000, None)
    rows = [(1, *[None] * 9, "t" * length, *[2] * 5, last) for last in lasts for length in lengths for _ in range(3)]
    declared = ", ".join([*(f"a{n} INTEGER" for n in range(10)), "c TEXT", *(f"b{n} INTEGER" for n in range(6))])
    path = made(tmp_path / "t.sqlite", rows, declared=declared)
    slow = columns(path, pages=False, integers=("a0", "b4", "b5"))
    only_pages(monkeypatch)

    assert slow == columns(path, pages=True, integers=("a0", "b4", "b5"))


def test_what_is_not_an_integer_is_missing(tmp_path):
    path = made(tmp_path / "t.sqlite", [(1.5, 0, "x", "word"), (None, 0, None, b"\x01"), (7, 0, "y", 8)])

    for pages in (True, False):
        assert [(7, 8), (MISSING, MISSING), (MISSING, MISSING)] == sorted(
            (row[:2] for row in columns(path, pages=pages)), reverse=True
        )


def test_an_empty_table(tmp_path):
    assert columns(made(tmp_path / "t.sqlite", []), pages=True) == []


@pytest.mark.parametrize(
    "declared",
    [
        "a INTEGER PRIMARY KEY, b INTEGER, c TEXT, d INTEGER",
        "a INTEGER, b INTEGER, c TEXT, d REAL",
        "a BIGINT, b INTEGER, c VARCHAR, d INTEGER",
        "a INTEGER, b INTEGER, c TEXT, d INTEGER DEFAULT 5",
    ],
)
def test_other_declarations(tmp_path, declared):
    path = made(tmp_path / "t.sqlite", [(number, 1, f"{number}", number) for number in range(1, 50)], declared=declared)

    assert columns(path, pages=False) == columns(path, pages=True)


def test_columns_added_later(tmp_path):
    path = made(tmp_path / "t.sqlite", [(1, 2, "x", 3)])
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("ALTER TABLE t ADD COLUMN late INTEGER DEFAULT 9")

    assert [(9, "x")] == columns(path, pages=True, integers=("late",))


def test_tables_without_row_ids(tmp_path):
    path = tmp_path / "t.sqlite"
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("CREATE TABLE t (b TEXT PRIMARY KEY, a INTEGER, c TEXT, d INTEGER) WITHOUT ROWID")
        database.execute("INSERT INTO t VALUES ('key', 1, 'x', 3)")

    assert [(1, 3, MISSING, "x")] == columns(path, pages=True)


@pytest.mark.parametrize("pragma", ["PRAGMA encoding = 'UTF-16'", "PRAGMA journal_mode = WAL", "PRAGMA auto_vacuum = FULL"])
def test_other_kinds_of_file(tmp_path, pragma):
    path = made(tmp_path / "t.sqlite", [(1, 2, "ü", 3)] * 20, pragma=pragma)

    assert [(1, 3, MISSING, "ü")] * 20 == columns(path, pages=True)


def test_equal_hashes_of_different_texts_are_noticed(tmp_path, monkeypatch):
    path = made(tmp_path / "t.sqlite", [(1, 2, "one", 3), (1, 2, "two", 3)])
    monkeypatch.setattr(_records, "mixed", lambda value, odd: value * 0 if odd == _records.ODD else value + 1)

    assert [(1, 3, MISSING, "one"), (1, 3, MISSING, "two")] == columns(path, pages=True)


def test_files_cut_off_or_too_short(tmp_path):
    path = tmp_path / "t.sqlite"
    for content in (b"", b"SQLite format 3\x00", b"SQLite format 3\x00" + bytes(84)):
        path.write_bytes(content)
        with pytest.raises(_pages.Irregular):
            _pages.PageFile(path)
