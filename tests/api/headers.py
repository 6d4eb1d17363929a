# SPDX-License-Identifier: Apache-2.0
"""Reads the public headers: functions with their parameters, and options structs. A declaration
that it cannot read is an error, so that a test which is made from the headers cannot miss one."""
import re
from collections import namedtuple
from pathlib import Path

Parameter = namedtuple("Parameter", "type name is_pointer")
Function = namedtuple("Function", "header returns name parameters is_variadic")
Options = namedtuple("Options", "header name members")

MACROS = r"LS_BEGIN_DECLS|LS_END_DECLS"


class Unreadable(Exception):
    pass


def strip(text):
    """Without comments, preprocessor lines, and the contents of extern "C" macros."""
    text = re.sub(r"/\*.*?\*/", " ", text, flags=re.S)
    text = re.sub(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*$", "", text, flags=re.M)
    return re.sub(rf"\b(?:{MACROS})\b", "", text)


def declarations(text):
    """The declarations of a file, split at the semicolons outside of braces."""
    depth, start = 0, 0
    for i, c in enumerate(text):
        depth += (c == "{") - (c == "}")
        if c == ";" and depth == 0:
            yield " ".join(text[start:i].split())
            start = i + 1
    if text[start:].strip():
        raise Unreadable(text[start:].strip())


def parameter(text, function_types):
    match = re.fullmatch(r"((?:const )?[a-z]\w*(?: ?(?:\*|const\b))* ?)(?<=[ *])([a-z]\w*)",
                         text.strip())
    if match is None:
        raise Unreadable(f"parameter '{text}'")
    kind = match[1].strip()
    return Parameter(kind, match[2], "*" in kind or kind in function_types)


def function(header, text, function_types):
    match = re.fullmatch(r"LS_API (?:LS_MUST_USE )?([\w\s*]+?)\b(ls_\w+)\(([^()]*)\)"
                         r"(?: LS_PRINTF\(\d+, \d+\))?", text)
    if match is None:
        raise Unreadable(text)
    given = [p.strip() for p in match[3].split(",")]
    is_variadic = given[-1] == "..."
    if is_variadic:
        given.pop()
    if given == ["void"]:
        given = []
    return Function(header, match[1].strip(), match[2],
                    [parameter(p, function_types) for p in given], is_variadic)


def members(body):
    """The names of a struct's members, in order."""
    names = []
    for one in body.split(";")[:-1]:
        match = re.fullmatch(r"[\w\s*]*?(?:(\w+)(\[\w+\])*|\(\*(\w+)\)\([^()]*\))", one.strip())
        if match is None:
            raise Unreadable(f"member '{one.strip()}'")
        names.append(match[1] or match[3])
    return names


def read(folder):
    """(functions, options structs) of all headers in the folder."""
    texts = [(p.name, strip(p.read_text())) for p in sorted(Path(folder).glob("*.h"))]
    function_types = {name for _, text in texts
                      for name in re.findall(r"typedef [^({;]*\(\*(\w+)\)", text)}
    functions, options = [], []
    for header, header_text in texts:
        try:
            for text in declarations(header_text):
                struct = re.fullmatch(r"typedef struct (\w+) \{(.*)\} (\w+)", text)
                if text.startswith("LS_API"):
                    functions.append(function(header, text, function_types))
                elif struct is not None and re.match(r"\s*size_t size;", struct[2]):
                    options.append(Options(header, struct[3], members(struct[2])))
                elif not text.startswith("typedef "):
                    raise Unreadable(text)
        except Unreadable as e:
            raise SystemExit(f"{header}: a declaration that the test cannot read: {e}") from None
    return functions, options
