"""Files that appear whole or not at all, whatever ends the writer, and what they replace."""

import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from jaxattn import ConversionError, save_checkpoint
from jaxattn._writing import check_destination, whole_file, workspace
from jaxattn.cli.process import tidy_at_termination

#: Writes half a file and waits; the package's parts that import JAX are left out.
WRITER = """
import sys, time, types
package = types.ModuleType("jaxattn")
package.__path__ = [sys.argv[1]]
sys.modules["jaxattn"] = package
from jaxattn._writing import whole_file
with whole_file(sys.argv[2]) as path:
    path.write_bytes(b"half")
    print("writing", flush=True)
    time.sleep(600)
"""


def start_writer(path: Path) -> subprocess.Popen:
    package = Path(__file__).parents[1] / "jaxattn"
    process = subprocess.Popen([sys.executable, "-c", WRITER, str(package), str(path)], stdout=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.readline() == b"writing\n"
    return process


def write(path: Path, text: str = "new", *, force: bool = False) -> None:
    with whole_file(path, force=force) as partial_path:
        partial_path.write_text(text)


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_what_a_killed_writer_left_is_removed_by_the_next_and_a_living_one_is_left_alone(tmp_path):
    killed, living = start_writer(tmp_path / "a"), start_writer(tmp_path / "b")
    try:
        killed.kill()
        killed.wait()
        assert len(names(tmp_path)) == 2
        write(tmp_path / "a")
        assert len(names(tmp_path)) == 2 and (tmp_path / "a").read_text() == "new"
        assert [path.read_bytes() for path in tmp_path.glob(".*/content/b")] == [b"half"]
    finally:
        living.kill()
        living.wait()
    write(tmp_path / "c")
    assert names(tmp_path) == ["a", "c"]


def test_another_hosts_leftover_stays_for_a_day(tmp_path):
    """A lock that this host gets says nothing of a writer on another one."""
    folder = tmp_path / ".jaxattn-0123456789abcdef"
    (folder / "content").mkdir(parents=True)
    (folder / "lock").write_text("another machine")
    write(tmp_path / "a")
    assert names(tmp_path) == [folder.name, "a"]
    yesterday = time.time() - 25 * 3600
    for path in (folder / "content", folder / "lock", folder):
        os.utime(path, (yesterday, yesterday))
    write(tmp_path / "b")
    assert names(tmp_path) == ["a", "b"]


def test_a_link_that_looks_like_a_leftover_is_not_followed(tmp_path):
    precious = tmp_path / "precious"
    (precious / "content").mkdir(parents=True)
    (precious / "lock").touch()
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / ".jaxattn-0123456789abcdef").symlink_to(precious)
    write(tmp_path / "here" / "a")
    assert names(precious) == ["content", "lock"]


def test_two_writers_in_one_process(tmp_path):
    with workspace(tmp_path) as one, workspace(tmp_path) as other:
        assert one.is_dir() and other.is_dir() and one != other
    assert names(tmp_path) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_on_the_command_line_a_signal_tidies_up(number, tmp_path):
    before = signal.signal(number, signal.SIG_DFL)
    try:
        with pytest.raises(SystemExit) as caught, tidy_at_termination(), whole_file(tmp_path / "a") as path:
            path.write_text("half")
            os.kill(os.getpid(), number)
            time.sleep(10)
        assert signal.getsignal(number) is signal.SIG_DFL
    finally:
        signal.signal(number, before)
    assert caught.value.code == 128 + number and names(tmp_path) == []


@pytest.mark.parametrize("name", ["a.pt", "a.safetensors"])
def test_a_full_disk_is_our_error(name, tmp_path):
    """A limit on the size of files stands for it: the system refuses the same call."""
    save_checkpoint({"w": np.ones(3)}, tmp_path / name)
    old, limits = (tmp_path / name).read_bytes(), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**18, limits[1]))
    try:
        with pytest.raises(ConversionError, match=f"`{name}` could not be written: .*File too large"):
            save_checkpoint({"w": np.ones(2**16)}, tmp_path / name, force=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert names(tmp_path) == [name] and (tmp_path / name).read_bytes() == old


@pytest.mark.parametrize("name", ["a.pt", "a.safetensors"])
@pytest.mark.parametrize("mode", [0o600, 0o664, 0o444])
def test_a_replaced_file_hands_its_permissions_on(name, mode, tmp_path):
    save_checkpoint({"w": np.ones(3)}, tmp_path / name)
    (tmp_path / name).chmod(mode)
    save_checkpoint({"w": np.zeros(3)}, tmp_path / name, force=True)
    assert (tmp_path / name).stat().st_mode & 0o7777 == mode
    save_checkpoint({"w": np.ones(3)}, tmp_path / f"new-{name}")
    (tmp_path / "plain").touch()
    assert (tmp_path / f"new-{name}").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_a_link_is_written_through(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to("there/file")
    for text in ("first", "second"):
        with pytest.raises(FileExistsError):
            write(tmp_path / "link")
        write(tmp_path / "link", text, force=True)
        assert (tmp_path / "link").is_symlink() and (tmp_path / "there" / "file").read_text() == text
    assert names(tmp_path) == ["link", "there"] and names(tmp_path / "there") == ["file"]


def pipe(path: Path) -> Path:
    os.mkfifo(path / "pipe")
    return path / "pipe"


def link_to_nowhere(path: Path) -> Path:
    (path / "link").symlink_to("none/file")
    return path / "link"


def link_in_a_circle(path: Path) -> Path:
    (path / "link").symlink_to("link")
    return path / "link"


PLACES = {
    "pipe": (pipe, FileExistsError, "a device or a pipe"),
    "link to nowhere": (link_to_nowhere, FileNotFoundError, "leads into"),
    "circle": (link_in_a_circle, OSError, "can't be written"),
    "NUL": (lambda path: path / "a\0b", ValueError, "NUL"),
    "too long": (lambda path: path / ("a" * 256), OSError, "can't be written: File name too long"),
    "below a file": (lambda path: Path(__file__) / "a", FileNotFoundError, "create it first"),
}


@pytest.mark.parametrize("place", PLACES)
def test_places_that_cannot_be_written(place, tmp_path):
    make, error, words = PLACES[place]
    path = make(tmp_path)
    before = names(tmp_path)
    with pytest.raises(error, match=words):
        check_destination(path, force=True)
    with pytest.raises(error, match=words):
        write(path, force=True)
    assert names(tmp_path) == before


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_the_longest_names(suffix, tmp_path):
    name = "é" * ((255 - len(suffix)) // 2) + suffix
    save_checkpoint({"w": np.ones(3)}, tmp_path / name)
    assert names(tmp_path) == [name]
