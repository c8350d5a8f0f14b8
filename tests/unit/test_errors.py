"""Errors told in one line."""

from __future__ import annotations

from holdfast.errors import first_line, one_line


def test_the_first_line_is_the_first_that_says_something() -> None:
    assert first_line(ValueError("\n   no such column\n  at line 3")) == "no such column"


def test_one_line_holds_all_that_an_error_says() -> None:
    assert one_line(ValueError("no such\n  column\n")) == "no such column"


def test_an_error_that_says_nothing_is_told_by_its_type() -> None:
    assert (first_line(KeyError()), one_line(EOFError(" \n"))) == ("KeyError", "EOFError")
