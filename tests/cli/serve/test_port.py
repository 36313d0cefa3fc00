"""The unix socket on which the server listens."""

from __future__ import annotations

import socket
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from rookery.cli.serve import port
from rookery.cli.serve.port import CannotListen
from rookery.settings.value_types import Address


@pytest.fixture
def path() -> Iterator[Path]:
    """A short path, because socket paths have a maximum length."""
    with tempfile.TemporaryDirectory(prefix="rkp") as folder:
        yield Path(folder) / "s"


def at(path: Path) -> Address:
    return Address("", 0, str(path))


def is_answered(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        try:
            client.connect(str(path))
        except OSError:
            return False
        return True


def test_socket_is_for_the_user_and_the_group_and_goes_with_the_server(path: Path) -> None:
    with port.bound(at(path)):
        assert stat.S_IMODE(path.stat().st_mode) == 0o660
        assert is_answered(path)

    assert not path.exists()


def test_socket_of_a_killed_server_is_replaced(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
        left.listen()
    assert path.exists()
    assert not is_answered(path)

    with port.bound(at(path)):
        assert is_answered(path)


def test_socket_in_use_is_not_replaced(path: Path) -> None:
    with port.bound(at(path)):
        with pytest.raises(CannotListen, match="already in use"), port.bound(at(path)):
            pass
        assert is_answered(path)


def test_file_that_is_no_socket_is_left_alone(path: Path) -> None:
    path.write_text("precious")

    with pytest.raises(CannotListen, match="is not a socket"), port.bound(at(path)):
        pass

    assert path.read_text() == "precious"


def test_directory_that_is_not_there_is_told(path: Path) -> None:
    with pytest.raises(CannotListen, match="No such file"), port.bound(at(path / "deeper" / "s")):
        pass


def test_server_that_ends_late_does_not_take_the_socket_of_its_successor(path: Path) -> None:
    with port.bound(at(path)):
        path.unlink()
        successor = socket.socket(socket.AF_UNIX)
        successor.bind(str(path))
        successor.listen()

    with successor:
        assert is_answered(path)


def test_unix_socket_has_no_port(path: Path) -> None:
    with port.bound(at(path)) as unix, port.bound(Address("127.0.0.1", 0)) as tcp:
        assert port.port_of(unix) is None
        assert port.port_of(tcp) == tcp.getsockname()[1]
