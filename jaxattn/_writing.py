"""Files that appear whole or not at all, and nothing left over from writers that were killed.

What is being written lies in a hidden folder beside its destination. The writer holds a lock in it, which the system
releases however the process ends; so the next writer in that directory knows which folders nobody writes to any more,
whatever became of process numbers. Locks may not reach other hosts: what was begun on one of those, or before this
one was restarted, counts as left over only when a day has passed without a change.
No signal handler is installed here: Python ends at SIGTERM without tidying, and the next writer does it then.
"""

import contextlib
import os
import platform
import secrets
import shutil
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ._text import argument

try:
    import fcntl
except ImportError:  # Windows: nothing tells whether a folder's writer lives, so none is removed
    fcntl = None

_HIDDEN, _LOCK, _CONTENT = ".jaxattn-", "lock", "content"
_A_DAY = 24 * 3600


def check_destination(path: str | os.PathLike[str], *, force: bool = False) -> Path:
    """The path, if a file may be written there.

    Raises:
        FileExistsError: a file is there and `force` is off; a directory, a device or a pipe is.
        FileNotFoundError: the directory does not exist.
        ValueError: a name that no file can have.
        OSError: a name that is too long.
    """
    path = Path(path)
    if "\0" in str(path):
        raise ValueError(f"A file's name can't hold the character NUL, got {str(path)!r}.")
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        mode = None
    except OSError as error:
        raise OSError(error.errno, f"`{path}` can't be written: {error.strerror}.") from error
    if mode is not None and stat.S_ISDIR(mode):
        raise FileExistsError(f"`{path}` is a directory: give the name of a file in it.")
    if mode is not None and not stat.S_ISREG(mode):
        raise FileExistsError(f"`{path}` is a device or a pipe, which is not replaced: give another name.")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"The directory `{path.parent}` does not exist: create it first.")
    if os.path.lexists(path) and not force:
        raise FileExistsError(f"`{path}` exists: pass {argument('force', True)} to replace it.")
    if path.is_symlink() and not path.resolve().parent.is_dir():
        raise FileNotFoundError(
            f"`{path}` leads into `{path.resolve().parent}`, which does not exist: create it first."
        )
    return path


@contextmanager
def whole_file(path: str | os.PathLike[str], *, force: bool = False) -> Iterator[Path]:
    """A path with the same name in a hidden folder to write to; the file takes its place at the end.

    Where the block raises, nothing is left behind and an older file stays. A file that is replaced hands its
    permissions on; where `path` is a link, the file that it leads to is replaced and the link stays.

    Args:
        path: the file that is to appear.
        force: replace a file that exists.

    Raises:
        FileExistsError: a file is there and `force` is off, or something that is no file; before the block or after it.
        FileNotFoundError: the directory does not exist.
        OSError: the directory can't be written to, or is full.
    """
    destination = check_destination(path, force=force).resolve()
    with workspace(destination.parent) as folder:
        partial_path = folder / destination.name
        yield partial_path
        _sync(partial_path)
        check_destination(path, force=force)
        with contextlib.suppress(FileNotFoundError):
            _hand_on_permissions(destination.stat(), partial_path)
        os.replace(partial_path, destination)
        _sync(destination.parent)


@contextmanager
def workspace(directory: Path) -> Iterator[Path]:
    """A new hidden folder in `directory` that is gone at the end; first, those of dead writers are removed.

    Raises:
        OSError: nothing can be made in `directory`.
    """
    _remove_leftovers(directory)
    try:
        folder, lock = _claim(directory)
    except OSError as error:
        raise OSError(error.errno, f"`{directory}` can't be written to: {error.strerror}.") from error
    try:
        yield folder / _CONTENT
    finally:
        shutil.rmtree(folder / _CONTENT, ignore_errors=True)
        os.close(lock)  # an open file is in the way on network file systems
        shutil.rmtree(folder, ignore_errors=True)


def _claim(directory: Path) -> tuple[Path, int]:
    """A new folder and the open file in it that this process holds locked."""
    while True:
        folder = directory / f"{_HIDDEN}{secrets.token_hex(8)}"
        folder.mkdir(mode=0o700)
        try:
            lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        except FileNotFoundError:  # another writer took the folder for a leftover, empty and unlocked as it was
            continue
        _lock(lock, wait=True)
        if os.fstat(lock).st_nlink:
            os.write(lock, _here())
            (folder / _CONTENT).mkdir()
            return folder, lock
        os.close(lock)  # it was taken for a leftover between being made and being locked


def _remove_leftovers(directory: Path) -> None:
    """Remove this user's folders whose writers are no more; one whose writer may live stays."""
    with contextlib.suppress(OSError):
        for folder in directory.glob(f"{_HIDDEN}*"):
            with contextlib.suppress(OSError):  # another writer removes it just now, or some of it isn't ours
                status = folder.lstat()
                if stat.S_ISDIR(status.st_mode) and (os.name == "nt" or status.st_uid == os.geteuid()):
                    _remove_if_dead(folder)


def _remove_if_dead(folder: Path) -> None:
    try:
        lock = os.open(folder / _LOCK, os.O_RDWR)
    except FileNotFoundError:
        folder.rmdir()  # only if it is empty: its writer died before it could lock it
        return
    try:
        if _lock(lock, wait=False) and (os.pread(lock, 100, 0) in (b"", _here()) or _age(folder) > _A_DAY):
            shutil.rmtree(folder / _CONTENT, ignore_errors=True)
            (folder / _LOCK).unlink()  # last, so that what is half removed can still be recognised
            folder.rmdir()
    finally:
        os.close(lock)


def _here() -> bytes:
    """What locks reach for certain: this machine since its start, all its containers included."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_bytes().strip()
    except OSError:
        return platform.node().encode()


def _age(folder: Path) -> float:
    """Seconds since anything in the folder was changed."""
    return time.time() - max(path.lstat().st_mtime for path in (folder, *folder.rglob("*")))


def _lock(descriptor: int, *, wait: bool) -> bool:
    """Whether this process now holds the lock; never where the system or the file system has none."""
    if fcntl is None:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError:
        return False
    return True


def _hand_on_permissions(old: os.stat_result, path: Path) -> None:
    """Owner, group and mode of the file that is replaced, as far as this user may give them."""
    mode, new = stat.S_IMODE(old.st_mode), path.stat()
    if os.name == "posix" and (old.st_uid, old.st_gid) != (new.st_uid, new.st_gid):
        try:
            os.chown(path, old.st_uid, old.st_gid)
        except PermissionError:
            with contextlib.suppress(PermissionError):
                os.chown(path, -1, old.st_gid)
    if path.stat().st_gid != old.st_gid:
        mode &= ~0o070  # they were another group's
    os.chmod(path, mode)


def _sync(path: Path) -> None:
    """Wait until a file, or the names in a directory, are on the disk."""
    if path.is_dir() and os.name == "nt":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
