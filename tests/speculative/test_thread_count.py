"""The number of threads of one thread, without a change of any other's."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch

from forescribe.speculative import device
from forescribe.speculative.device import at_most, keep_to_one_core


@pytest.fixture(autouse=True)
def three_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def mkl_threads() -> int:
    """MKL's number for the calling thread; OpenMP's where torch has no MKL."""
    count = getattr(device._library(), "MKL_Get_Max_Threads", torch.get_num_threads)
    return int(count())


def in_thread(action) -> None:
    errors: list[BaseException] = []

    def run() -> None:
        try:
            action()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert not errors, errors


def test_a_block_uses_fewer_threads_and_leaves_the_number_as_it_was() -> None:
    with at_most(1):
        assert torch.get_num_threads() == mkl_threads() == 1
        in_thread(lambda: check(3))
        with at_most(2):  # never more than there are
            assert torch.get_num_threads() == mkl_threads() == 1
    check(3)
    with at_most(2):
        check(2)
    with at_most(4):
        check(3)
    with pytest.raises(KeyError), at_most(1):
        raise KeyError
    check(3)


def check(count: int) -> None:
    assert torch.get_num_threads() == mkl_threads() == count


def test_a_thread_that_keeps_to_one_core_changes_no_other() -> None:
    def one() -> None:
        keep_to_one_core()
        check(1)
        torch.ones(300, 300) @ torch.ones(300, 300)
        check(1)

    in_thread(one)
    check(3)
    in_thread(lambda: check(3))


def test_without_the_functions_nothing_is_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "_library", lambda: None)
    with at_most(1):
        assert torch.get_num_threads() == 3
