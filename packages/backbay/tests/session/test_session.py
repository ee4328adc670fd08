"""Sessions with handlers that each do one thing that a process must not do."""

import dataclasses
import os
import sys
import time
from pathlib import Path

import psutil
import pytest

from backbay.session import LocalClient, Lost, ProcessClient, Refused, Service, Session

sys.path.insert(0, str(Path(__file__).parent))
import handlers
from handlers import SERVICE, Do

FOLDER = str(Path(__file__).parent)
LONG_S = 60.0


def client(service=SERVICE, environment=None, **limits):
    return ProcessClient(service, environment or {}, path=[FOLDER], **limits)


@pytest.fixture
def session():
    with Session(client) as session:
        yield session


def asked(session, what, timeout_s=LONG_S):
    return session.ask(Do(what), timeout_s=timeout_s)


def is_gone(pid):
    for _ in range(100):
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.05)
    psutil.Process(pid).kill()
    return False


def test_requests_meet_another_handler_each(session):
    assert [asked(session, "count").number for _ in range(3)] == [1, 2, 3]


def test_what_is_printed_is_taken_for_a_reply(session):
    assert asked(session, "prints").number == 1
    assert asked(session, "count").number == 2


def test_a_crash_is_the_end_of_the_session(session):
    asked(session, "count")
    with pytest.raises(
        Lost, match=r"the process died \(SIGSEGV\): Segmentation fault, in "
    ) as lost:
        asked(session, "segfaults")
    assert (lost.value.status, lost.value.exit_code) == ("crashed", -11)
    assert asked(session, "count").number == 1  # of another process


def test_an_exit_has_no_last_words(session):
    with pytest.raises(Lost, match=r"died \(exit code 3\); it last printed: the end$") as lost:
        asked(session, "exits")
    assert lost.value.exit_code == 3
    assert lost.value.printed == "printed while it is made\nthe end\n"


def test_a_hang_lasts(session):
    pid = int(asked(session, "pid").text)
    with pytest.raises(Lost, match=r"no answer within 0\.2 s") as lost:
        asked(session, "hangs", timeout_s=0.2)
    assert lost.value.status == "timeout"
    assert is_gone(pid)
    assert asked(session, "count").number == 1


def test_half_a_reply_is_a_reply():
    with Session(lambda: client(Service("handlers:HalfDoer", handlers.Done))) as session:
        with pytest.raises(Lost, match=r"the process died \(exit code 0\)") as lost:
            asked(session, "count")
        assert lost.value.status == "crashed"


def test_a_reply_of_another_kind_is_taken():
    service = Service("handlers:Doer", handlers.Do)
    with Session(lambda: client(service)) as session, pytest.raises(Lost, match="can't be read"):
        asked(session, "count")


def test_a_handler_that_raises_costs_its_process(session):
    with pytest.raises(Refused, match=r"^ValueError: no kernel$") as refused:
        asked(session, "raises")
    assert (refused.value.status, refused.value.input_error) == ("failed", False)
    assert asked(session, "count").number == 2


def test_the_users_mistake_looks_like_a_backends(session):
    with pytest.raises(Refused, match=r"^there is no such thing$") as refused:
        asked(session, "blames")
    assert refused.value.input_error
    assert refused.value.detail == "line 1\nline 2"


@pytest.mark.parametrize("ending", ["end", "timeout"])
def test_a_descendant_that_left_the_group_lives_on(session, ending):
    daemon = int(asked(session, "leaves_a_daemon").text)
    assert os.getpgid(daemon) == daemon
    if ending == "end":
        session.end()
    else:
        with pytest.raises(Lost):
            asked(session, "hangs", timeout_s=0.2)
    assert is_gone(daemon)


def test_a_process_that_closed_its_output_is_waited_for_without_end(session):
    start = time.monotonic()
    with pytest.raises(Lost):
        asked(session, "closes_all")
    assert time.monotonic() - start < LONG_S


def test_a_process_prints_without_end():
    with Session(lambda: client(most_printed=2**20)) as session:
        with pytest.raises(Lost) as lost:
            asked(session, "floods")
        assert lost.value.too_much_printed
        assert lost.value.printed.endswith("xxx")


def test_a_paused_process_goes_on_or_never_wakes(session):
    asked(session, "count")
    session.stop()
    with pytest.raises(Lost, match="no answer within"):
        asked(session, "count", timeout_s=0.3)
    asked(session, "count")
    session.stop()
    session.resume()
    assert asked(session, "count").number == 2


def test_a_handler_that_cannot_be_imported_is_waited_for():
    absent = dataclasses.replace(SERVICE, handler="no_such_module:Doer")
    said = r"exit code 1\).*No module named 'no_such_module'"
    with Session(lambda: client(absent)) as session, pytest.raises(Lost, match=said):
        asked(session, "count")


def test_no_process_can_be_started(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with Session(client) as session, pytest.raises(Lost, match="/nowhere/python") as lost:
        asked(session, "count")
    assert lost.value.status == "failed"


def test_an_environment_that_stays_behind(monkeypatch):
    monkeypatch.delenv("TESTED", raising=False)
    with Session(lambda: client(environment={"TESTED": "1"})) as session:
        assert asked(session, "environment").text == "1"
    with SERVICE.here(handlers.Doer(), {"TESTED": "2"}) as here:
        assert asked(here, "environment").text == "2"
    assert "TESTED" not in os.environ


def test_the_twin_in_this_process_answers_otherwise():
    with SERVICE.here(handlers.Doer()) as here:
        assert asked(here, "count").number == 1
        with pytest.raises(Refused, match=r"^ValueError: no kernel$"):
            asked(here, "raises")
        here.stop()
        here.resume()
        assert asked(here, "pid").text == str(os.getpid())


def test_the_twin_hands_on_what_cannot_travel():
    with pytest.raises(TypeError):
        LocalClient(SERVICE, handlers.Doer(), {}).ask(Do(object()), timeout_s=1.0)


def test_a_session_that_is_not_asked_starts_a_process():
    def opened():
        raise AssertionError

    with Session(opened) as session:
        session.stop()
        session.resume()


def test_logs_are_left_behind(session, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    asked(session, "prints")
    assert len(list(tmp_path.iterdir())) == 1
    session.end()
    assert list(tmp_path.iterdir()) == []


def test_torch_is_imported(run_python):
    program = "import sys, backbay.session.worker, backbay.session; print('torch' in sys.modules)"
    assert run_python(program).stdout == "False\n"
