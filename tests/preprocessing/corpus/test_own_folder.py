"""The cache's folder below one that others write to as well: made, found again, and refused if it may be another's."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from reread.preprocessing.corpus.cache import Cache, CacheSettings
from reread.preprocessing.corpus.own_folder import MARK, open_own, own_folder
from reread.preprocessing.errors import UserError

SOMEBODY = 65_533
NAME = f"reread-cache-{os.geteuid()}"


def a_link(folder: Path) -> None:
    folder.rename(folder.with_name("real"))
    folder.symlink_to("real")


def anothers(folder: Path) -> None:
    os.chown(folder, SOMEBODY, -1)


def without_its_mark(folder: Path) -> None:
    (folder / MARK).unlink()


def with_another_mark(folder: Path) -> None:
    (folder / MARK).write_text("Signature: 8a477f597d28d172789f06886806bc55\n# Created by cargo.\n")


def with_a_link_for_a_mark(folder: Path) -> None:
    (folder / MARK).rename(folder / "mark")
    (folder / MARK).symlink_to("mark")


def a_file(folder: Path) -> None:
    folder.rename(folder.with_name("real"))
    folder.touch()


def for_all(folder: Path) -> None:
    folder.chmod(0o777)


def for_the_group(folder: Path) -> None:
    folder.chmod(0o770)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (a_link, "is a link"),
        (anothers, f"belongs to user {SOMEBODY}"),
        (without_its_mark, rf"was not made by reread \(its {MARK} is missing or differs\)"),
        (with_another_mark, "was not made by reread"),
        (with_a_link_for_a_mark, "was not made by reread"),
        (a_file, "is not a folder"),
        (for_all, r"can be written to by others \(mode 777\)"),
        (for_the_group, r"can be written to by others \(mode 770\)"),
    ],
)
def test_a_folder_that_may_be_anothers_is_refused_and_left_alone(
    tmp_path: Path, change: Callable[[Path], None], reason: str
) -> None:
    """Its name is that of ours in all cases."""
    if change is anothers and os.geteuid():
        pytest.skip("needs root")
    folder = own_folder(tmp_path)
    assert folder == tmp_path / NAME and folder.stat().st_mode & 0o777 == 0o700
    (folder / "file").touch()
    change(folder)
    before = sorted(tmp_path.rglob("*"))
    line = rf"^data.cache.folder: {folder}: {reason}.*, so nothing is kept there; give another folder$"
    with pytest.raises(UserError, match=line):
        Cache(CacheSettings(folder=tmp_path, size=1 << 20))
    assert sorted(tmp_path.rglob("*")) == before


def test_an_empty_folder_of_that_name_is_taken_by_nobody(tmp_path: Path) -> None:
    """It becomes ours if it may: to the system it is the same as none."""
    (tmp_path / NAME).symlink_to("elsewhere")
    (tmp_path / "elsewhere").mkdir()
    with pytest.raises(UserError, match="is a link"):
        own_folder(tmp_path)
    assert not list((tmp_path / "elsewhere").iterdir()) and len(list(tmp_path.iterdir())) == 2


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_link_on_the_way_is_followed_if_it_is_the_users_or_the_systems(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "scratch").symlink_to("disk")
    assert own_folder(tmp_path / "scratch" / "mine").is_dir()
    os.chown(tmp_path / "scratch", SOMEBODY, -1, follow_symlinks=False)
    with pytest.raises(UserError, match=rf"{tmp_path}/scratch: is a link that user {SOMEBODY} made, so nothing"):
        own_folder(tmp_path / "scratch" / "mine")


def test_of_two_that_make_it_at_once_both_have_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one finds that of the first in its place when it is ready."""
    made, exists = [], os.path.lexists

    def another_comes_first(path: Path) -> bool:
        if not made:
            made.append(path)
            own_folder(tmp_path)
            return False
        return exists(path)

    monkeypatch.setattr(os.path, "lexists", another_comes_first)
    assert own_folder(tmp_path) == tmp_path / NAME
    assert [path.name for path in tmp_path.iterdir()] == [NAME] and [path.name for path in made] == [NAME]


def test_a_link_is_not_opened(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"kept")
    (tmp_path / "link").symlink_to("file")
    for mode in ("rb", "wb", "r+b", "ab"):
        with pytest.raises(OSError, match="symbolic links"):
            open_own(tmp_path / "link", mode)
    assert (tmp_path / "file").read_bytes() == b"kept"
