"""Requests in storage: claimed once, answered once, swept so that none looks new again."""

from __future__ import annotations

import pytest

from holdfast.checkpoint.log.requests import (
    EXPIRES_MS,
    KEPT_MAX,
    KEPT_MS,
    Requests,
    State,
    Step,
    ask,
    asked_ms,
    check_id,
    forget,
    outdated,
    read_asked,
    take_back,
)
from holdfast.checkpoint.store import names
from holdfast.checkpoint.store.envelope import seal, unseal
from holdfast.checkpoint.store.log_records import AnswerRecord, RequestRecord
from holdfast.errors import CorruptionError, DefinitionError, RestoreError, UnknownOutcome
from holdfast.testing.faulty_storage import Fault, FaultKind, FaultyStorage
from tests.unit.checkpoint.kept import MemoryStorage

NOW = 1_760_000_000_000


@pytest.fixture
def storage() -> MemoryStorage:
    return MemoryStorage()


def asked(storage: MemoryStorage | FaultyStorage, number: int = 1, now_ms: int = NOW) -> str:
    return ask(
        storage, "rescale", {"parallelism": 4}, token=f"{number:08x}", asked_by="anna@host", now_ms=now_ms
    ).id


def test_a_request_reads_back_with_who_asked_what_and_when(storage: MemoryStorage) -> None:
    found = read_asked(storage, asked(storage))
    assert found.request == RequestRecord(
        id=f"{NOW}-00000001",
        verb="rescale",
        arguments={"parallelism": 4},
        asked_by="anna@host",
        asked_ms=NOW,
        expires_ms=NOW + EXPIRES_MS,
    )
    assert found.state is State.WAITING


def test_ids_sort_by_time(storage: MemoryStorage) -> None:
    late, early = asked(storage, 1, NOW + 5), asked(storage, 2, NOW)
    assert [found.id for found in Requests(storage, 1).open()] == [early, late]
    assert asked_ms(late) == NOW + 5


def test_a_request_goes_from_waiting_over_running_to_done(storage: MemoryStorage) -> None:
    id, leader = asked(storage), Requests(storage, term=3)
    leader.accept(id, NOW + 1)
    assert read_asked(storage, id).state is State.ACCEPTED
    assert leader.claim(id, NOW + 2) is not None
    assert read_asked(storage, id).state is State.RUNNING
    leader.end(id, State.DONE, NOW + 3, result={"shards": 4})
    found = read_asked(storage, id)
    assert found.state is State.DONE
    assert found.answer == AnswerRecord(request=id, state="done", term=3, at_ms=NOW + 3, result={"shards": 4})
    assert leader.open() == []


def test_of_two_leaders_one_gets_the_request(storage: MemoryStorage) -> None:
    id = asked(storage)
    assert Requests(storage, term=1).claim(id, NOW) is not None
    assert Requests(storage, term=2).claim(id, NOW) is None


def test_the_first_answer_stands(storage: MemoryStorage) -> None:
    id = asked(storage)
    Requests(storage, term=2).end(id, State.FAILED, NOW, error="the leader of term 1 ended while at it")
    Requests(storage, term=1).end(id, State.DONE, NOW)
    assert read_asked(storage, id).state is State.FAILED


def test_a_claim_whose_outcome_storage_did_not_tell_is_found_to_be_ours() -> None:
    faulty = FaultyStorage(MemoryStorage())
    id = asked(faulty)
    lost = [
        Fault(kind=FaultKind.LOSE_ANSWER, operation="put_new", name="answers/*"),
        Fault(kind=FaultKind.FAIL, operation="list", name="answers/*"),
    ]
    for fault in lost:
        faulty.add(fault)
    leader = Requests(faulty, term=1)
    with pytest.raises(UnknownOutcome):
        leader.claim(id, NOW)
    assert leader.claim(id, NOW + 500) is not None, "the first try had arrived"


def test_a_request_that_was_answered_and_swept_is_not_claimed_again(storage: MemoryStorage) -> None:
    id = asked(storage)
    paused = Requests(storage, term=1)
    assert [found.id for found in paused.open()] == [id]
    newer = Requests(storage, term=2)
    newer.claim(id, NOW)
    newer.end(id, State.DONE, NOW)
    newer.sweep(NOW + KEPT_MS + 1, in_hand=())
    assert storage.list("") == []
    assert paused.claim(id, NOW + KEPT_MS + 2) is None


def test_a_sweep_deletes_requests_before_their_answers(storage: MemoryStorage) -> None:
    id, leader = asked(storage), Requests(storage, term=1)
    leader.claim(id, NOW)
    leader.end(id, State.DONE, NOW)
    storage.log.clear()
    assert leader.sweep(NOW + KEPT_MS + 1, in_hand=()) == 3
    deleted = [name for call, name in storage.log if call == "delete"]
    assert deleted[0] == names.request(id)
    assert len(deleted) == 3


def test_a_sweep_spares_the_young_and_what_is_in_hand(storage: MemoryStorage) -> None:
    old, young = asked(storage, 1, NOW), asked(storage, 2, NOW + KEPT_MS)
    leader = Requests(storage, term=1)
    leader.claim(old, NOW)
    assert leader.sweep(NOW + KEPT_MS + 1, in_hand=[old]) == 0
    leader.sweep(NOW + KEPT_MS + 1, in_hand=[])
    assert [found.id for found in leader.open()] == [young]


def test_answers_without_a_request_are_swept(storage: MemoryStorage) -> None:
    id, leader = asked(storage), Requests(storage, term=1)
    storage.delete([names.request(id)])
    leader.end(id, State.DONE, NOW)
    leader.sweep(NOW, in_hand=())
    assert storage.list("") == []


def test_beyond_a_thousand_the_oldest_go_but_none_that_could_still_be_claimed() -> None:
    ids = [f"{NOW + n}-00000000" for n in range(KEPT_MAX + 3)]
    assert outdated(ids, NOW + EXPIRES_MS) == []
    assert outdated(ids, NOW + 2 * EXPIRES_MS) == ids[:3]


def test_nothing_new_costs_one_listing(storage: MemoryStorage) -> None:
    leader = Requests(storage, term=1)
    for number in range(3):
        leader.end(asked(storage, number), State.DONE, NOW)
    leader.open()
    storage.log.clear()
    assert leader.open() == []
    in_hand = asked(storage, 9)
    assert leader.open([in_hand]) == []
    assert [call for call in storage.log if call[0] == "list"] == [("list", names.REQUESTS)] * 2


def test_names_that_are_not_requests_are_ignored(storage: MemoryStorage) -> None:
    storage.put("requests/README", b"hello")
    storage.put("answers/README", b"hello")
    leader = Requests(storage, term=1)
    assert leader.open() == []
    leader.sweep(NOW, in_hand=())
    assert len(storage.objects) == 2


@pytest.mark.parametrize("id", ["", "../job", f"{NOW}-xyz", f"{NOW}-00000001/..", f"{NOW}-00000001\n"])
def test_a_malformed_id_is_refused_before_storage_is_touched(storage: MemoryStorage, id: str) -> None:
    with pytest.raises(DefinitionError, match="is not the id of a request"):
        read_asked(storage, id)
    assert storage.log == []


def test_there_is_no_request_of_this_id(storage: MemoryStorage) -> None:
    with pytest.raises(RestoreError, match="there is no request"):
        read_asked(storage, check_id(f"{NOW}-00000009"))


def test_a_damaged_request_says_so_until_it_is_answered(storage: MemoryStorage) -> None:
    id = asked(storage)
    storage.flip(names.request(id))
    with pytest.raises(CorruptionError):
        read_asked(storage, id)
    with pytest.raises(CorruptionError):
        Requests(storage, term=1).claim(id, NOW)
    Requests(storage, term=1).end(id, State.REFUSED, NOW, error="damaged")
    found = read_asked(storage, id)
    assert (found.request, found.state) == (None, State.REFUSED)


def test_a_damaged_answer_is_not_passed_over(storage: MemoryStorage) -> None:
    id, leader = asked(storage), Requests(storage, term=1)
    leader.claim(id, NOW)
    leader.end(id, State.DONE, NOW)
    storage.flip(names.answers_of(id) + Step.ENDED)
    with pytest.raises(CorruptionError):
        read_asked(storage, id)
    assert Requests(storage, term=2).open() == [], "and never carried out again"


def test_of_members_that_lead_under_one_term_one_claims_a_request(storage: MemoryStorage) -> None:
    id = asked(storage)
    first, second = (Requests(storage, term=1, process=process) for process in ("first", "second"))
    assert first.claim(id, NOW) is not None
    assert second.claim(id, NOW + 1) is None
    assert first.claim(id, NOW + 2) is not None, "its own claim, which it does not remember"


def test_the_owner_of_a_damaged_claim_is_unknown(storage: MemoryStorage) -> None:
    id, leader = asked(storage), Requests(storage, term=1)
    leader.claim(id, NOW)
    storage.flip(names.answers_of(id) + Step.RUNNING)
    assert leader.claimed_by(id) is None


def test_a_request_under_another_ones_name_is_damage(storage: MemoryStorage) -> None:
    first, second = asked(storage, 1), asked(storage, 2)
    storage.objects[names.request(first)] = storage.objects[names.request(second)]
    with pytest.raises(CorruptionError, match="holds request"):
        read_asked(storage, first)


def test_a_request_that_was_taken_back_is_not_carried_out(storage: MemoryStorage) -> None:
    id = asked(storage)
    found = take_back(storage, id, NOW, "nobody took it")
    assert (found.state, found.answer and found.answer.error) == (State.REFUSED, "nobody took it")
    assert Requests(storage, term=1).claim(id, NOW) is None


def test_what_a_leader_has_begun_cannot_be_taken_back(storage: MemoryStorage) -> None:
    id = asked(storage)
    Requests(storage, term=1).claim(id, NOW)
    assert take_back(storage, id, NOW, "too slow").state is State.RUNNING


def test_a_forgotten_question_leaves_nothing(storage: MemoryStorage) -> None:
    id, leader = asked(storage), Requests(storage, term=1)
    leader.claim(id, NOW)
    leader.end(id, State.DONE, NOW)
    forget(storage, id)
    assert storage.list("") == []


def test_the_stored_form_of_a_request_and_an_answer() -> None:
    """The bytes of docs/formats/request.md: changing them is changing the format."""
    request = RequestRecord(
        id=f"{NOW}-0a1b2c3d", verb="stop", arguments={"drain": True}, asked_by="anna@host",
        asked_ms=NOW, expires_ms=NOW + 1,
    )  # fmt: skip
    data = seal("request", request)
    header, _, body = data.partition(b"\n")
    assert header.startswith(b"holdfast request 4 ")
    assert body == (
        b'{"id":"1760000000000-0a1b2c3d","verb":"stop","arguments":{"drain":true},"asked_by":"anna@host",'
        b'"asked_ms":1760000000000,"expires_ms":1760000000001}'
    )
    assert unseal("request", RequestRecord, data, "requests/x") == request
    answer = AnswerRecord(request=request.id, state="running", term=3, at_ms=NOW)
    assert seal("answer", answer).partition(b"\n")[2] == (
        b'{"request":"1760000000000-0a1b2c3d","state":"running","term":3,"at_ms":1760000000000}'
    )
