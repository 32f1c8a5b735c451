"""What a policy packed stays in its folder, whatever it packed."""

import io
import os
import stat
import tarfile

import pytest

from budwood.sandbox import pack, unpack


async def tar_of(*members):
    """Yield a tar of (name, content) for files and (name, type, target) for the rest."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for name, *rest in members:
            member = tarfile.TarInfo(name)
            member.mode = 0o4755
            if len(rest) == 1:
                member.size = len(rest[0])
                tar.addfile(member, io.BytesIO(rest[0]))
            else:
                member.type, member.linkname = rest
                tar.addfile(member)
    yield file.getvalue()


SYM, HARD, FOLDER = tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE
LONG = "d" * 240


@pytest.mark.parametrize(
    "members",
    [
        [("/evil", b"x")],
        [("../evil", b"x")],
        [("a/../../evil", b"x")],
        [("out", SYM, ".."), ("out/evil", b"x")],
        [("in", FOLDER, ""), ("link", SYM, "in"), ("link/evil", b"x")],
        [("file", b"x"), ("file/evil", b"x")],
        [("hard", HARD, "../secret")],
        [("out", SYM, ".."), ("hard", HARD, "out/secret")],
    ],
)
async def test_a_name_that_leads_outside_ends_the_unpacking(tmp_path, members):
    (tmp_path / "secret").write_text("secret")
    with pytest.raises(tarfile.TarError):
        await unpack(tar_of(*members), tmp_path / "host")
    assert not (tmp_path / "evil").exists()
    assert not (tmp_path / "host" / "hard").exists()


@pytest.mark.parametrize(
    ("members", "left_out"),
    [
        ([("l", SYM, "/etc/passwd")], ["l"]),
        ([("l", SYM, "../secret")], ["l"]),
        ([("l", SYM, "loop"), ("loop", SYM, "l")], ["l"]),
        # Each is inside by its words alone; together they are not.
        (
            [("l", SYM, "a/b/c/../../../secret"), ("a/c/x", b""), ("a/b", SYM, ".")],
            ["l"],
        ),
        ([("file", b"x"), ("hard", HARD, "file"), ("soft", SYM, "file")], []),
        ([("dev", tarfile.CHRTYPE, ""), ("pipe", tarfile.FIFOTYPE, "")], ["dev", "pipe"]),
    ],
)
async def test_a_link_that_leads_outside_and_a_device_are_left_out(tmp_path, members, left_out):
    (tmp_path / "secret").write_text("secret")
    assert await unpack(tar_of(*members), tmp_path / "host") == left_out
    for path in (tmp_path / "host").rglob("*"):
        assert path.resolve().is_relative_to(tmp_path / "host")


async def test_a_link_below_names_too_long_to_follow_is_left_out(tmp_path):
    # Sixteen short links lead sixteen long folders down: what they stand for passes PATH_MAX, so
    # that no one can say where the last one leads.
    members, here = [], ""
    for letter in "abcdefghijklmnop":
        members += [(f"{here}{LONG}", FOLDER, ""), (f"{here}{letter}", SYM, LONG)]
        here += f"{letter}/"
    with pytest.raises(tarfile.TarError):
        await unpack(tar_of(*members, (f"{here}out", SYM, "../" * 16 + "..")), tmp_path / "host")


async def test_what_was_unpacked_can_be_read_and_removed_and_has_no_set_uid_bit(tmp_path):
    async def tree():
        file = io.BytesIO()
        with tarfile.open(fileobj=file, mode="w") as tar:
            for name, kind, mode in [("d", FOLDER, 0o000), ("d/f", tarfile.REGTYPE, 0o6000)]:
                member = tarfile.TarInfo(name)
                member.type, member.mode, member.uid = kind, mode, 4242
                tar.addfile(member)
        yield file.getvalue()

    assert await unpack(tree(), tmp_path) == []
    assert stat.S_IMODE((tmp_path / "d").stat().st_mode) == 0o700
    about = (tmp_path / "d/f").stat()
    assert (stat.S_IMODE(about.st_mode), about.st_uid) == (0o600, os.geteuid())


async def test_a_later_member_replaces_an_earlier_one_and_not_what_it_leads_to(tmp_path):
    tar = tar_of(("real", b"real"), ("name", SYM, "real"), ("name", b"new"))
    assert await unpack(tar, tmp_path) == []
    assert (tmp_path / "real").read_bytes() == b"real"
    assert (tmp_path / "name").read_bytes() == b"new"


async def test_what_is_no_tar_is_said_to_be_none(tmp_path):
    async def noise():
        yield b"no tar" * 1000

    with pytest.raises(tarfile.TarError):
        await unpack(noise(), tmp_path)


async def test_a_packed_folder_comes_back_the_same(tmp_path):
    given, back = tmp_path / "given", tmp_path / "back"
    (given / "a/b").mkdir(parents=True)
    (given / "a/b/run").write_bytes(os.urandom(1000))
    (given / "a/b/run").chmod(0o755)
    (given / "link").symlink_to("a/b/run")
    assert await unpack(pack(given), back) == []
    assert (back / "link").read_bytes() == (given / "a/b/run").read_bytes()
    assert stat.S_IMODE((back / "a/b/run").stat().st_mode) == 0o755
    times = [(each / "a/b/run").stat().st_mtime for each in (given, back)]
    assert times[0] == pytest.approx(times[1], abs=1e-3)
