"""What happens to files: bits flip, blocks go, double or move, foreign text comes in.

All chance is the given ``random.Random``'s, so that a seed repeats a run and Hypothesis, which
gives one of its own, can make a failing input small.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from zlib import crc32

FOREIGN: Sequence[bytes] = (
    b"Nov 29 18:00:01 web systemd[1]: Started a session.\n",
    b"#include <stdio.h>\nint main(void) { return 0; }\n",
    "Zeilen \u2028 mit \x85 Trennern\n".encode("utf-16"),
    b'{"v":1,"task":"shop.tasks.send","args":[7]}\n',
    b"deadbeef\n",
    b"deadbeef:add:1-1-a-1\n",
    b"add:1-1-a-1:n1:5:0:default:x\n",
    b"\x7fELF\x02\x01\x01" + bytes(9),
    b"\x1b[31m\r\n\r\n",
    b"\n" * 40,
    b"\xff" * 40,
    b"0",
    b"\\",
)
NUMBERS = (b"0", b"-1", b"1" * 18, b"-" + b"9" * 18, b"9" * 19, b"9" * 400, b"9" * 5000, b"", b"x")
ODD_NUMBERS = (b"1_0", b" 5", b"+5", b"1.5", b"nan", "\u0665".encode(), b"-", b"32768", b"-32769")
NAMES = (b"1-1-a-1", b"1-1-a-2", b"1-1-a-3", b"A.b_c-d")
ODD_NAMES = (b"", b"x" * 200, b"x" * 201, b"x" * 600, b"a b", b"\xff", b"a\0", b"\xc3\xa9", b"..")
NONCES = (b"n1", b"n2", b"n3")
OPS = (b"add", b"add", b"add", b"run", b"run", b"end", b"rem")
ODD_OPS = (b"", b"ADD", b"del", b"dead_task", b"x" * 30, b"\xff")
PAYLOADS = (
    b"",
    b"x",
    b"a\\nb\\\\",
    b"\\x",
    b"\\",
    b"a\r\0:b",
    b"\0\0",
    b"y" * 300,
    b"z" * 1500,
    b'{"v":1,"task":"shop.send","at":5.0,"args":[1,"\\\\n"],"kwargs":{}}',
)
BODIES = (
    b"",
    b"{}",
    b"null",
    b"[]",
    b"{",
    b"\xff\xfe",
    b'{"id":5,"failed_at":1e999,"backtrace":[1,[2]],"attempts":true}',
    b'{"id":"other","failed_at":"yesterday","context":5,"queue":"a b","exception_class":null}',
    b'{"failed_at":' + b"9" * 400 + b',"enqueued_at":-1e308,"attempts":' + b"9" * 5000 + b"}",
    b'{"a":' + b"[" * 2000 + b"]" * 2000 + b"}",
    b'{"backtrace":[' + b"[" * 700 + b"]" * 700 + b"]}",
    b'{"task_class":"\\ud800","exception_message":"\\u0000\\u202e","context":"\\u0100"}',
    b"z" * 1500,
)


def framed(body: bytes) -> bytes:
    """A line with a right checksum, as the log has it: a newline before and after."""
    return b"\n%08x:%b\n" % (crc32(body), body)


def _pick(chance: random.Random, usual: Sequence[bytes], odd: Sequence[bytes]) -> bytes:
    return chance.choice(usual) if chance.random() < 0.9 else chance.choice(odd)


def log_record(chance: random.Random) -> bytes:
    """A record of the log with a right checksum; now and then its fields are wrong."""
    op = _pick(chance, OPS, ODD_OPS)
    fields = [op, _pick(chance, NAMES, ODD_NAMES), _pick(chance, NONCES, ODD_NAMES)]
    if op in (b"add", b"del"):
        publish = _pick(chance, (b"0", b"5", b"-7", b"4000000000000"), NUMBERS + ODD_NUMBERS)
        priority = _pick(chance, (b"0", b"5", b"-32768"), NUMBERS + ODD_NUMBERS)
        queue = _pick(chance, (b"default", b"mail"), ODD_NAMES)
        fields += [publish, priority, queue, chance.choice(PAYLOADS)]
    elif op == b"run":
        fields += [b"w" * 13, chance.choice((b"boot-1", b"boot-2"))]
        fields.append(_pick(chance, (b"1", b"2"), NUMBERS + ODD_NUMBERS))
    if chance.random() < 0.03:
        fields.append(b"more")
    if chance.random() < 0.03:
        fields.pop()
    return framed(b":".join(fields))


def dead_record(chance: random.Random) -> bytes:
    """A line of the dead-tasks file with a right checksum."""
    kind = b"dead_task" if chance.random() < 0.95 else chance.choice(ODD_OPS)
    body = b"%b:%b:%b" % (kind, _pick(chance, NAMES, ODD_NAMES), chance.choice(BODIES))
    return framed(body)[1:]


Maker = Callable[[random.Random], bytes]
Mutation = Callable[[bytearray, random.Random, Maker], None]


def _place(data: bytearray, chance: random.Random) -> int:
    """Anywhere; but often where something begins or ends."""
    if not data or chance.random() < 0.6:
        return chance.randint(0, len(data))
    newline = data.find(b"\n", chance.randint(0, len(data) - 1))
    return min(len(data), max(0, newline + chance.choice((-1, 0, 1))))


def _span(data: bytearray, chance: random.Random) -> slice:
    start = _place(data, chance)
    size = chance.choice((1, 1, 2, 9, 40, 300))
    return slice(start, min(len(data), start + chance.randint(1, size)))


def flip_bit(data: bytearray, chance: random.Random, make: Maker) -> None:
    if data:
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)


def change_byte(data: bytearray, chance: random.Random, make: Maker) -> None:
    if data:
        data[min(_place(data, chance), len(data) - 1)] = chance.choice(b"\n\0:\\0af\r\xff -")


def cut_off(data: bytearray, chance: random.Random, make: Maker) -> None:
    del data[_place(data, chance) :]


def cut_front(data: bytearray, chance: random.Random, make: Maker) -> None:
    del data[: _place(data, chance)]


def delete(data: bytearray, chance: random.Random, make: Maker) -> None:
    del data[_span(data, chance)]


def insert_zeros(data: bytearray, chance: random.Random, make: Maker) -> None:
    place = _place(data, chance)
    data[place:place] = bytes(chance.choice((1, 2, 9, 100, 700)))


def zeros_behind_a_line(data: bytearray, chance: random.Random, make: Maker) -> None:
    """As a full disk and then a power cut leave it: the newline was not taken."""
    newline = data.find(b"\n", _place(data, chance))
    if newline >= 0:
        data[newline:newline] = bytes(chance.choice((1, 2, 30, 600)))
        how = chance.random()
        if how < 0.3:
            del data[newline + 1 + data[newline:].find(b"\n") :]
        elif how < 0.6:  # the end of what was appended arrived, and its beginning did not
            behind = data.find(b"\n", newline)
            del data[behind : behind + chance.choice((2, 5, 20, 60))]


def overwrite_with_zeros(data: bytearray, chance: random.Random, make: Maker) -> None:
    span = _span(data, chance)
    data[span] = bytes(span.stop - span.start)


def cut_and_grow_with_zeros(data: bytearray, chance: random.Random, make: Maker) -> None:
    """As a power cut leaves it: the size is durable, the bytes are not."""
    place = _place(data, chance)
    data[place:] = bytes(min(len(data) - place, 600))


def double(data: bytearray, chance: random.Random, make: Maker) -> None:
    span = _span(data, chance)
    place = _place(data, chance)
    data[place:place] = data[span]


def swap(data: bytearray, chance: random.Random, make: Maker) -> None:
    first, second = sorted((_place(data, chance), _place(data, chance)))
    third = chance.randint(second, len(data))
    data[first:third] = data[second:third] + data[first:second]


def foreign_text(data: bytearray, chance: random.Random, make: Maker) -> None:
    place = _place(data, chance)
    data[place:place] = chance.choice(FOREIGN)


def random_bytes(data: bytearray, chance: random.Random, make: Maker) -> None:
    place = _place(data, chance)
    data[place:place] = bytes(chance.randrange(256) for _ in range(chance.randint(1, 12)))


def other_line_ends(data: bytearray, chance: random.Random, make: Maker) -> None:
    start = _place(data, chance)
    data[start:] = data[start:].replace(b"\n", b"\r\n", chance.choice((1, 2, -1)))


def utf_16(data: bytearray, chance: random.Random, make: Maker) -> None:
    start = _place(data, chance)
    data[start:] = bytes(data[start : start + 400]).decode("latin-1").encode("utf-16")


def join_lines(data: bytearray, chance: random.Random, make: Maker) -> None:
    newline = data.find(b"\n", _place(data, chance))
    if newline >= 0:
        del data[newline]


def long_line(data: bytearray, chance: random.Random, make: Maker) -> None:
    place = _place(data, chance)
    data[place:place] = chance.choice((b"a", b"0", b"\0", b":")) * chance.choice((300, 3000))


def many_newlines(data: bytearray, chance: random.Random, make: Maker) -> None:
    place = _place(data, chance)
    data[place:place] = b"\n" * chance.choice((1, 2, 500))


def whole_record(data: bytearray, chance: random.Random, make: Maker) -> None:
    place = _place(data, chance)
    data[place:place] = make(chance)


def cut_record(data: bytearray, chance: random.Random, make: Maker) -> None:
    """A write that was not finished, and what was appended behind it."""
    record = make(chance)
    data += record[: chance.randint(0, len(record))]
    if chance.random() < 0.7:
        data += make(chance)


MUTATIONS: Sequence[Mutation] = (
    flip_bit,
    flip_bit,
    change_byte,
    change_byte,
    cut_off,
    cut_front,
    delete,
    insert_zeros,
    zeros_behind_a_line,
    zeros_behind_a_line,
    overwrite_with_zeros,
    cut_and_grow_with_zeros,
    double,
    swap,
    foreign_text,
    random_bytes,
    other_line_ends,
    utf_16,
    join_lines,
    long_line,
    many_newlines,
    whole_record,
    whole_record,
    cut_record,
    cut_record,
)


def mutate(seed: bytes, chance: random.Random, make: Maker) -> bytes:
    """``seed`` with records of ``make`` behind it, changed in up to six places."""
    data = bytearray(seed)
    for _ in range(chance.randint(0, 6)):
        data += make(chance)
    for _ in range(chance.choice((0, 1, 1, 2, 3, 6))):
        chance.choice(MUTATIONS)(data, chance, make)
    return bytes(data)


def places_to_stop(content: bytes, chance: random.Random) -> list[int]:
    """Up to three lengths that the file may have when it is read: often where something ends."""
    places = []
    for _ in range(chance.randint(0, 3)):
        place = chance.randint(0, len(content))
        mark = content.find(chance.choice((b"\n", b"\0")), place)
        if mark >= 0 and chance.random() < 0.5:
            place = min(len(content), mark + chance.choice((0, 0, 1, 2)))
        places.append(place)
    return places
