# ruff: noqa: N818 - the exceptions here are named for what they do
"""Exceptions become text whatever their own code does."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
import traceback
import tracemalloc
from collections.abc import Callable
from typing import Any, NoReturn

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deferred_django.backends import failures
from deferred_django.backends.failures import describe
from tests.support import environment


def raised(function: Callable[[], Any]) -> Any:
    """What the function raises. Any: groups want to know more of their members than is known."""
    try:
        function()
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")


def size(lines: list[str]) -> int:
    return len("\n".join(lines).encode("utf-8", "surrogatepass"))


def check_bounds(exception: BaseException) -> tuple[str, str, list[str]]:
    name, message, backtrace = describe(exception)
    assert len(message.encode("utf-8", "surrogatepass")) <= 16_000
    assert len(backtrace) <= 400
    assert size(backtrace) <= 64_000
    assert type(name) is type(message) is str
    assert {type(line) for line in backtrace} == {str}
    json.dumps([name, message, backtrace])
    return name, message, backtrace


# -- what is printed is what traceback prints ----------------------------------------------------


def divide() -> float:
    return 1 / 0


def with_cause() -> None:
    try:
        divide()
    except ZeroDivisionError as error:
        raise ValueError("a\nb") from error


def with_context() -> None:
    try:
        with_cause()
    except ValueError:
        raise KeyError("k")  # noqa: B904 - the context is what is tested


def with_suppressed_context() -> None:
    try:
        divide()
    except ZeroDivisionError:
        raise ValueError("x") from None


def with_notes() -> NoReturn:
    error = RuntimeError("n")
    error.add_note("one\ntwo")
    error.add_note("three")
    raise error


def group() -> NoReturn:
    inner = ExceptionGroup("inner", [raised(with_notes)])
    members = [raised(divide), raised(with_cause), inner]
    raise ExceptionGroup("outer", members)


def bad_syntax() -> None:
    exec("x = (1,\n", {})


def misspelt() -> None:
    misspelt_x = 1  # noqa: F841 - what the interpreter may suggest
    misspelt_y  # type: ignore[name-defined]  # noqa: B018, F821


def wrong_attribute() -> None:
    "".joni  # type: ignore[attr-defined]  # noqa: B018


def wrong_import() -> None:
    from os import pth  # type: ignore[attr-defined]  # noqa: F401


def cause_loop() -> NoReturn:
    one, two = ValueError("1"), KeyError("2")
    one.__cause__, two.__cause__ = two, one
    raise one


@pytest.mark.parametrize(
    "function",
    [
        divide,
        with_cause,
        with_context,
        with_suppressed_context,
        with_notes,
        group,
        bad_syntax,
        misspelt,
        wrong_attribute,
        wrong_import,
        cause_loop,
        lambda: sys.exit(3),
    ],
)
def test_the_backtrace_is_what_traceback_prints(function: Callable[[], Any]) -> None:
    error = raised(function)
    printed = "".join(traceback.format_exception(error)).removesuffix("\n")
    assert describe(error)[2] == printed.split("\n")


def test_the_class_is_named_as_a_traceback_names_it() -> None:
    from django.db.utils import IntegrityError

    class Local(Exception):
        pass

    assert describe(ValueError("x"))[0] == "ValueError"
    assert describe(IntegrityError("x"))[0] == "django.db.utils.IntegrityError"
    local = describe(Local("x"))[0]
    assert local.startswith(f"{__name__}.test_the_class")
    assert local.endswith(".<locals>.Local")


def test_each_traceback_is_cut_to_its_innermost_frames() -> None:
    def fall(depth: int) -> None:
        if depth == 0:
            divide()
        fall(depth - 1)

    def rise() -> None:
        try:
            fall(100)
        except ZeroDivisionError as error:
            raise ValueError("x") from error

    backtrace = describe(raised(rise))[2]
    end = backtrace.index("ZeroDivisionError: division by zero")
    assert backtrace[0] == "Traceback (most recent call last):"
    assert "divide" in "".join(backtrace[end - 4 : end])
    assert "  [Previous line repeated 15 more times]" in backtrace[:end]
    assert not any("in rise" in line for line in backtrace[:end])
    assert backtrace[-1] == "ValueError: x"


# -- exceptions that misbehave -------------------------------------------------------------------


class BadStr(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")


class ExitingStr(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)


class IntStr(Exception):
    def __str__(self) -> str:
        return 7  # type: ignore[return-value]


class BadRepr(Exception):
    def __repr__(self) -> str:
        raise RuntimeError("no")

    __str__ = __repr__


class BadBool(Exception):
    def __bool__(self) -> bool:
        raise RuntimeError("no")


class BadLinks(Exception):
    @property
    def __cause__(self) -> Any:  # type: ignore[override]
        raise RuntimeError("no")

    @property
    def __context__(self) -> Any:  # type: ignore[override]
        raise RuntimeError("no")

    @property
    def __traceback__(self) -> Any:  # type: ignore[override]
        raise RuntimeError("no")


class BadNotes(Exception):
    @property
    def __notes__(self) -> Any:  # type: ignore[override]
        raise RuntimeError("no")


class BadEverything(Exception):
    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError("no")


class Meta(type):
    def __getattribute__(cls, name: str) -> Any:
        raise RuntimeError("no")


class BadMeta(Exception, metaclass=Meta):
    pass


class NamedMeta(type):
    @property
    def __name__(cls) -> Any:  # type: ignore[override]
        return 3

    @property
    def __module__(cls) -> Any:  # type: ignore[override]
        raise RuntimeError("no")


class BadlyNamed(Exception, metaclass=NamedMeta):
    pass


class BadGroup(ExceptionGroup[Exception]):
    @property
    def exceptions(self) -> Any:
        raise RuntimeError("no")


class BadSyntax(SyntaxError):
    @property
    def msg(self) -> Any:  # type: ignore[override]
        raise RuntimeError("no")


class BadDir:
    def __dir__(self) -> Any:
        raise KeyboardInterrupt


MISBEHAVING: list[tuple[Callable[[], BaseException], str, str]] = [
    (lambda: BadStr("x"), "BadStr", "<exception str() failed>"),
    (lambda: ExitingStr("x"), "ExitingStr", "<exception str() failed>"),
    (lambda: IntStr("x"), "IntStr", "<exception str() failed>"),
    (lambda: BadRepr("x"), "BadRepr", "<exception str() failed>"),
    (lambda: ValueError(BadRepr("x"), 1), "ValueError", "<exception str() failed>"),
    (lambda: BadBool("x"), "BadBool", "x"),
    (lambda: BadLinks("x"), "BadLinks", "x"),
    (lambda: BadNotes("x"), "BadNotes", "x"),
    (lambda: BadEverything("x"), "BadEverything", "x"),
    (lambda: BadMeta("x"), "BadMeta", "x"),
    (lambda: BadlyNamed("x"), "<unknown>.BadlyNamed", "x"),
    (lambda: BadGroup("x", [ValueError("y")]), "BadGroup", "x (1 sub-exception)"),
    (lambda: BadSyntax("x"), "BadSyntax", ""),
    (lambda: AttributeError("x", name="y", obj=BadDir()), "AttributeError", "x"),
]


@pytest.mark.parametrize(("make", "name", "message"), MISBEHAVING)
def test_an_exception_that_misbehaves_is_described(
    make: Callable[[], BaseException], name: str, message: str
) -> None:
    """C33: class, placeholder, and a backtrace that says where."""

    def fail() -> NoReturn:
        raise make()

    for error in (make(), raised(fail)):
        found = check_bounds(error)
        assert found[0].endswith(name)
        if message:
            assert found[1] == message
        assert any(name in line for line in found[2])


def test_a_misbehaving_cause_does_not_hide_the_failure() -> None:
    """C33."""

    def fail() -> NoReturn:
        try:
            raise BadBool("inner")
        except BadBool as error:
            raise ValueError("outer") from error

    backtrace = check_bounds(raised(fail))[2]
    assert any("BadBool: inner" in line for line in backtrace)
    assert backtrace[-1] == "ValueError: outer"


@pytest.mark.parametrize(
    "notes", [3, "text", ["fine", 3, BadStr("x")], ("a",), {1: 2}, [], [["x"] * 10**6]]
)
def test_odd_notes_are_shown(notes: Any) -> None:
    error = ValueError("x")
    error.__notes__ = notes
    assert "ValueError: x" in check_bounds(error)[2]


@pytest.mark.parametrize("module", [None, 3, "", "a\nb", "\udcff", "__main__", "x" * 10**6])
def test_odd_module_names_are_shown(module: Any) -> None:
    cls = type("Odd", (Exception,), {"__module__": module})
    name = check_bounds(cls("x"))[0]
    assert name.endswith("Odd")
    assert len(name) < 1000


@pytest.mark.parametrize("qualname", ["<b>", "a\nb", "\udcff\0", "x" * 10**6, ""])
def test_odd_class_names_are_shown(qualname: str) -> None:
    cls = type("Odd", (Exception,), {"__qualname__": qualname, "__module__": "m"})
    name = check_bounds(cls("x"))[0]
    assert name.startswith("m.")
    assert len(name) < 1000


def test_loops_of_causes_contexts_and_groups_end() -> None:
    """C33."""
    one, two, three = ValueError("1"), KeyError("2"), OSError("3")
    one.__cause__, two.__context__, three.__cause__ = two, three, one
    assert len(check_bounds(one)[2]) < 20
    selfish = ExceptionGroup("g", [one])
    one.__cause__ = selfish
    check_bounds(selfish)
    check_bounds(one)


def test_chains_and_groups_of_any_size_are_bounded() -> None:
    first = error = ValueError("0")
    for number in range(1, 5000):
        error.__cause__ = ValueError(str(number))
        error = error.__cause__
    backtrace = check_bounds(first)[2]
    assert backtrace[-1] == "ValueError: 0"

    nested: Exception = ValueError("x")
    for _ in range(60):  # two to the sixtieth, if each member were printed
        nested = ExceptionGroup("g", [nested, nested])
    check_bounds(nested)
    check_bounds(ExceptionGroup("g", [ValueError(str(n)) for n in range(5000)]))
    wide = ExceptionGroup("g", [ValueError("y" * 20_000) for _ in range(50)])
    backtrace = check_bounds(wide)[2]
    assert any("left out" in line for line in backtrace)


def test_deep_recursion_is_described() -> None:
    def fall() -> None:
        fall()

    name, _, backtrace = check_bounds(raised(fall))
    assert name == "RecursionError"
    assert backtrace[-1].startswith("RecursionError: maximum recursion depth")


# -- messages ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "a\u2028b\x85c\x0bd\x1ce\rf\ng:h,i\t%s",
        "\0",
        "\udcff",
        "<script>alert(1)</script>",
        "",
        "…" * 5000,
    ],
)
def test_odd_messages_come_back_equal(text: str) -> None:
    """C26, C28, C58."""
    assert check_bounds(ValueError(text))[1] == text


def test_only_newlines_split_lines() -> None:
    """C26."""
    assert describe(ValueError("a\u2028b\x85c\rd\ne"))[2] == ["ValueError: a\u2028b\x85c\rd", "e"]


@pytest.mark.parametrize("char", ["x", "é", "…", "😀", "\udcff", "\n"])
def test_a_huge_message_is_cut_without_copies_of_it(char: str) -> None:
    error = ValueError(char * (8 * 1024 * 1024))
    describe(ValueError("warm"))
    tracemalloc.start()
    try:
        _, message, backtrace = check_bounds(error)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1024 * 1024 * (10 if char == "\n" else 2)
    assert "8,388,608 characters in all" in message
    assert size([message]) > 15_900
    assert message.startswith(char * 1000)
    assert backtrace


def test_a_message_of_a_str_subclass_is_a_plain_str() -> None:
    class Loud(str):
        __slots__ = ()

        def __len__(self) -> int:
            raise RuntimeError("no")

        def __getitem__(self, key: Any) -> str:
            raise RuntimeError("no")

        def encode(self, *arguments: Any) -> bytes:
            raise RuntimeError("no")

    class Speaking(Exception):
        def __str__(self) -> str:
            return Loud("x")

    message = describe(Speaking())[1]
    assert message == "x"
    assert type(message) is str


def test_safe_str_never_raises() -> None:
    class Silent:
        def __str__(self) -> str:
            raise RuntimeError("no")

    assert failures.safe_str(3) == "3"
    assert failures.safe_str(Silent()).endswith("Silent str() failed>")


def test_a_traceback_whose_source_is_odd() -> None:
    code = compile("\n" * 5 + "1/0", "<nowhere>\n\x7f", "exec")
    for scope in ({}, {"__name__": 3, "__loader__": 4}):
        assert check_bounds(raised(lambda scope=scope: exec(code, scope)))[0] == "ZeroDivisionError"  # type: ignore[misc]


@settings(max_examples=60, deadline=None)
@given(st.text(alphabet=st.characters(exclude_categories=()), max_size=40), st.integers(0, 20))
def test_cut_keeps_whole_characters(text: str, factor: int) -> None:
    long = text * factor * 1000
    cut = failures.safe_str(long)
    assert len(cut.encode("utf-8", "surrogatepass")) <= failures.MAX_MESSAGE_BYTES
    if len(long.encode("utf-8", "surrogatepass")) <= failures.MAX_MESSAGE_BYTES:
        assert cut == long
    else:
        kept, _, mark = cut.rpartition("… (cut; ")
        assert long.startswith(kept)
        assert mark == f"{len(long):,} characters in all)"


def test_django_is_not_imported() -> None:
    code = """
        import sys
        from deferred_django.backends import failures
        assert failures.describe(ValueError("x"))[0] == "ValueError"
        assert not [name for name in sys.modules if name.split(".")[0] == "django"]
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    subprocess.run(command, check=True, env=environment(), timeout=30)
