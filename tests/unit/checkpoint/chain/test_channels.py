"""What commits put into channels: it only grows at one end and shrinks at the other."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from msgspec.structs import replace as changed

from holdfast.checkpoint.chain.channels import Channel, fold_channels, from_states, to_states
from holdfast.checkpoint.chain.commits import Chain
from holdfast.checkpoint.chain.history import DamagedChain, History
from holdfast.checkpoint.chain.retention import Retention
from holdfast.checkpoint.chain.view import EMPTY, CheckpointView, from_manifest, to_manifest
from holdfast.checkpoint.savepoints.take import savepoint_manifest
from holdfast.checkpoint.store import names
from holdfast.checkpoint.store.envelope import seal, unseal
from holdfast.checkpoint.store.records import ChannelState, CommitRecord, Manifest, SentFile
from holdfast.errors import CorruptionError
from holdfast.ids import CommitNumber
from holdfast.storage.local_directory import LocalStorage
from tests.unit.checkpoint.kept import MemoryStorage, commit, draft, extent

UID = "clicks-in"


def sent(epoch: int, part: int = 0, channel: str = UID) -> SentFile:
    where = extent(f"{names.data_of(epoch)}{channel}-{part}")
    return SentFile(channel=channel, epoch=epoch, part=part, extent=where, rows=1)


def state(through: int, released: int = 0, times: tuple[tuple[int, int], ...] = ()) -> ChannelState:
    return ChannelState(through=through, released=released, times=times)


def sending(view: CheckpointView, released: int = 0, epochs: int = 1) -> CommitRecord:
    """The record of the next epochs, each of which sends one file and moves event time."""
    record = draft(view, epochs=epochs)
    covered = [e for e in range(record.first_epoch, record.last_epoch + 1) if e > through(view)]
    return changed(
        record,
        sent=tuple(sent(epoch) for epoch in covered),
        channels={
            UID: state(
                max(record.last_epoch, through(view)), released, tuple((e, 1_000 * e) for e in covered)
            )
        },
    )


def through(view: CheckpointView) -> int:
    return view.channels.get(UID, Channel()).through


def epochs_in(view: CheckpointView) -> list[int]:
    return [file.epoch for file in view.channels[UID].files]


def grown(chain: Chain, count: int, view: CheckpointView = EMPTY) -> CheckpointView:
    for _ in range(count):
        view = commit(chain, view, sending(view))
    return view


def test_a_channel_grows_in_the_order_of_epochs_and_parts() -> None:
    files = [sent(2, 1), sent(1, 1), sent(2, 0), sent(1, 0), sent(1, 0, "other")]
    record = changed(draft(EMPTY, epochs=2), sent=tuple(files), channels={UID: state(2), "other": state(2)})
    channels = fold_channels({}, record)
    assert [(file.epoch, file.part) for file in channels[UID].files] == [(1, 0), (1, 1), (2, 0), (2, 1)]
    assert [file.channel for file in channels["other"].files] == ["other"]


def test_what_is_released_goes_and_never_comes_back() -> None:
    channel = Channel().after(state(3), [sent(1), sent(2), sent(3)])
    later = channel.after(state(4, released=2), [sent(4)])
    assert [file.epoch for file in later.files] == [3, 4]
    assert [file.epoch for file in channel.files] == [1, 2, 3], "the older view keeps what it had"
    back = later.after(state(1, released=1), [])
    assert (back.through, back.released) == (4, 2)
    assert [file.epoch for file in back.files] == [3, 4]


def test_a_file_that_is_released_as_it_comes_is_not_kept() -> None:
    assert not Channel().after(state(1, released=1), [sent(1)]).files


def test_time_holds_from_its_epoch_on() -> None:
    channel = Channel().after(state(5, times=((2, 20), (4, 40))), [])
    assert [channel.time_after(epoch) for epoch in range(1, 6)] == [None, 20, 20, 40, 40]


def test_of_released_times_the_last_still_holds() -> None:
    channel = Channel().after(state(6, times=((1, 10), (2, 20), (5, 50))), [])
    channel = channel.after(state(7, released=3, times=((7, 70),)), [])
    assert channel.times == ((2, 20), (5, 50), (7, 70))
    assert channel.time_after(3) == 20
    assert channel.after(state(7, released=7), []).times == ((7, 70),)


def test_a_record_that_says_nothing_leaves_channels_and_one_that_names_others_drops_them() -> None:
    before = {UID: Channel().after(state(1), [sent(1)])}
    assert fold_channels(before, draft(EMPTY)) is before
    assert fold_channels(before, changed(draft(EMPTY), channels={"other": state(3)})).keys() == {"other"}
    assert fold_channels(before, changed(draft(EMPTY), channels={})) == {}


def test_channels_survive_a_manifest() -> None:
    view = grown(Chain(MemoryStorage()), 4)
    view = replace(
        view, channels={UID: view.channels[UID].after(state(4, 2), []), "other": Channel(through=4)}
    )
    data = seal("manifest", to_manifest(view))
    read = from_manifest(unseal("manifest", Manifest, data, "m"), "m")
    assert read.channels == view.channels
    assert from_states(*to_states(view.channels)) == view.channels


def test_channels_are_read_back_through_manifests() -> None:
    storage = MemoryStorage()
    view = grown(Chain(storage, manifest_every=2), 7)
    assert Chain(storage).load().channels == view.channels
    assert epochs_in(view) == [1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("manifest", ["read", "damaged"])
def test_a_rewind_changes_nothing_of_a_channel(manifest: str) -> None:
    storage = MemoryStorage()
    chain = Chain(storage)
    view = commit(chain, grown(chain, 4), sending(chain.load(), released=1))
    back = chain.rewind(view.head, CommitNumber(2), term=1, run="run-1").view
    if manifest == "damaged":
        storage.flip(back.manifest)
        chain = Chain(storage)
    loaded = Chain(storage).load()
    assert loaded.last_epoch == 2
    assert loaded.channels == view.channels == back.channels
    assert epochs_in(loaded) == [2, 3, 4, 5]
    again = commit(chain, loaded, sending(loaded, epochs=4))
    assert (epochs_in(again), again.channels[UID].through) == ([2, 3, 4, 5, 6], 6)


def test_a_rewind_past_a_damaged_commit_keeps_what_it_can_read() -> None:
    storage = MemoryStorage()
    grown(Chain(storage), 5)
    storage.flip(names.commit(5))
    with pytest.raises(DamagedChain) as damage:
        Chain(storage).load()
    assert damage.value.fallback == 4
    chain = Chain(storage)
    back = chain.rewind(damage.value.head, CommitNumber(2), term=1, run="run-1").view
    assert (back.last_epoch, epochs_in(back), through(back)) == (2, [1, 2, 3, 4], 4)
    assert Chain(storage).load().channels == back.channels


@pytest.mark.parametrize("loss", ["flipped", "missing"])
def test_a_channel_has_no_hole_where_a_record_was_lost(loss: str) -> None:
    """What the lost record has put there is sent again, and what came after it as well: in order."""
    storage = MemoryStorage()
    grown(Chain(storage), 5)
    if loss == "flipped":
        storage.flip(names.commit(3))
    else:
        storage.delete([names.commit(3)])
    with pytest.raises(DamagedChain) as damage:
        Chain(storage).load()
    chain = Chain(storage)
    back = chain.rewind(damage.value.head, damage.value.fallback, term=1, run="run-1").view
    assert (back.last_epoch, epochs_in(back), through(back)) == (2, [1, 2], 2)
    again = grown(chain, 3, back)
    assert epochs_in(again) == [1, 2, 3, 4, 5]
    storage.flip(back.manifest)
    assert Chain(storage).load().channels == again.channels


def test_what_is_not_released_is_kept_and_what_is_released_is_deleted(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    chain = Chain(storage, retain=2, manifest_every=3)
    retention = Retention(chain, sweep_every=1)

    def grow(view: CheckpointView, released: int) -> CheckpointView:
        record = sending(view, released)
        for file in record.sent:
            storage.put(file.extent.object, b"x")
        view = commit(chain, view, changed(record, deltas=(), staged=()))
        retention.after_commit(view)
        return view

    def there() -> list[int | None]:
        return [names.number_of(entry.name) for entry in storage.list(names.DATA)]

    view = EMPTY
    for _ in range(9):
        view = grow(view, released=0)
    assert there() == list(range(1, 10))
    for _ in range(3):
        view = grow(view, released=6)
    assert there() == list(range(7, 13))
    view = chain.rewind(view.head, CommitNumber(view.retained_from), term=1, run="run-1").view
    retention.after_commit(view)
    for _ in range(4):
        view = grow(view, released=6)
    assert there() == list(range(7, view.channels[UID].through + 1))


def test_the_end_holds_until_a_later_commit() -> None:
    storage = MemoryStorage()
    chain = Chain(storage, manifest_every=1)
    view = commit(chain, grown(chain, 2), changed(sending(chain.load()), ended=True))
    assert Chain(storage).load().ended
    assert not commit(chain, view, sending(view)).ended


def test_a_savepoint_holds_nothing_of_channels_and_says_so() -> None:
    view = grown(Chain(MemoryStorage()), 3)
    manifest = savepoint_manifest(view)
    assert manifest.sent == ()
    channel = from_states(manifest.channels, manifest.sent)[UID]
    assert (channel.through, channel.released, channel.time_after(3)) == (3, 3, 3_000)


STAGED = (
    b'"staged":[{"stream":"out","epoch":1,"part":0,"extent":{"object":"data/000000000001/staged","offset":0,'
    b'"length":1,"checksum":""},"rows":1}]'
)
COMMIT = (
    b'{"number":1,"parent":{"number":0,"checksum":""},"term":1,"run":"run-1","first_epoch":1,"last_epoch":1,'
    b'"attempts":{"1":1},"clock_ms":1,"parallelism":1,"fingerprint":"f","positions":{"in":1},'
    b'%b,"rows":10,"published_through":{"out":0}}'
)
MANIFEST = (
    b'{"number":2,"parent":{"number":1,"checksum":"c"},"term":1,"run":"run-1","positions":{"in":1},'
    b""
    b'"notes":{},"last_epoch":1,"clock_ms":1,"parallelism":1,"fingerprint":"f","rows":10,'
    b'"operators":[],"deltas":[],'
    b'"snapshots":[],%b,"published_through":{"out":0},"retained_from":1}'
)


def test_a_job_without_channels_writes_what_it_wrote_before_there_were_any() -> None:
    chain = Chain(MemoryStorage())
    view = commit(chain, EMPTY, draft(EMPTY, deltas=()))
    assert chain.storage.get(names.commit(1)).partition(b"\n")[2] == COMMIT % STAGED
    manifest = to_manifest(replace(view, checksum="c"))
    assert seal("manifest", manifest).partition(b"\n")[2] == MANIFEST % STAGED


def test_a_rewind_whose_parent_the_floor_has_passed_meanwhile_is_missed_as_such() -> None:
    """The reader looks again then; it must not stumble."""
    storage = MemoryStorage()
    chain = Chain(storage)
    view = grown(chain, 3)
    done = chain.rewind(view.head, CommitNumber(2), term=1, run="run-1")
    storage.objects.pop(chain.record(done.view.number).manifest)
    storage.put(names.floor(9), b"")
    with pytest.raises(CorruptionError, match="cannot be read any more"):
        History(storage).view_at(done.view.number)
