"""The embedded queue: whole messages only, each to one reader, whoever else reads and writes."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest
from kombu import Connection, Queue

import config.celery  # registers the transport
from config.filesystem_broker import Channel, write_whole
from tests.ops.services import PATIENCE_S

assert config.celery.app


def connection(folder: Path) -> Connection:
    (folder / "control").mkdir(parents=True, exist_ok=True)
    options = {
        "data_folder_in": str(folder), "data_folder_out": str(folder), "control_folder": str(folder / "control"),
    }  # fmt: skip
    return Connection("filesystem://localhost", transport_options=options)


@pytest.fixture
def name(tmp_path: Path) -> str:
    """kombu remembers per process which queues were bound, so each test has a queue of its own."""
    return f"q-{tmp_path.name}"


def send(folder: Path, name: str, sender: int, count: int) -> None:
    with connection(folder) as client, client.SimpleQueue(name) as queue:
        for number in range(count):
            queue.put([sender, number, "x" * 5000])


def test_the_transport_is_ours(tmp_path):
    with connection(tmp_path) as client:
        assert isinstance(client.default_channel, Channel)


def test_every_message_arrives_whole_and_once_while_others_write(tmp_path, name):
    """Three writers beside a reader that never waits."""
    context = multiprocessing.get_context("spawn")
    with connection(tmp_path) as client, client.SimpleQueue(name) as queue:
        writers = [context.Process(target=send, args=(tmp_path, name, sender, 200)) for sender in range(3)]
        for writer in writers:
            writer.start()
        seen = []
        while len(seen) < 600:
            try:
                message = queue.get(timeout=PATIENCE_S if any(w.is_alive() for w in writers) else 1)
            except queue.Empty:
                break
            seen.append(tuple(message.payload[:2]))
            message.ack()
        for writer in writers:
            writer.join()
    assert sorted(seen) == [(sender, number) for sender in range(3) for number in range(200)]


def test_a_message_is_not_found_before_it_is_written(tmp_path, name, monkeypatch):
    found_meanwhile = []
    rename = Path.replace

    def replace(part, target):
        assert part.read_text(), "complete before it gets its name"
        found_meanwhile.append(channel._size(name))
        return rename(part, target)

    with connection(tmp_path) as client:
        channel = client.default_channel
        monkeypatch.setattr(Path, "replace", replace)
        channel._put(name, {"body": "x"})
        assert (found_meanwhile, channel._size(name)) == ([0], 1)
        assert channel._get(name) == {"body": "x"}


def test_a_file_that_is_no_json_is_put_aside_and_the_next_is_read(tmp_path, name, caplog):
    with connection(tmp_path) as client, client.SimpleQueue(name) as queue:
        write_whole(tmp_path / f"0_torn.{name}.msg", "")
        queue.put("after")
        assert queue.get(timeout=PATIENCE_S).payload == "after"
    assert "is not JSON" in caplog.text
    assert [path.name for path in tmp_path.glob(".*torn*")] == [f".0_torn.{name}.msg.part"]


def test_a_message_without_a_reader_stays(tmp_path, name):
    with connection(tmp_path) as client:
        with client.SimpleQueue(name) as queue:
            queue.put(1)
        assert client.default_channel._size(name) == 1


def test_bindings_of_several_processes_are_all_kept(tmp_path):
    with connection(tmp_path) as client:
        channel = client.default_channel
        for number in range(5):
            Queue(f"q{number}", exchange="e", routing_key=f"r{number}")(channel)
            channel._queue_bind("e", f"r{number}", "", f"q{number}")
        assert {row.queue for row in channel.get_table("e")} == {f"q{number}" for number in range(5)}
        channel._delete("q3", "e", "r3", "")
        assert "q3" not in {row.queue for row in channel.get_table("e")}


@pytest.mark.parametrize("path", ["../x", "/etc/x", ".."])
def test_an_exchange_name_is_no_path(tmp_path, path):
    with connection(tmp_path) as client, pytest.raises(Exception, match="Invalid exchange name"):
        client.default_channel.get_table(path)
