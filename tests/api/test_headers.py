#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""test_headers.py INCLUDE-FOLDER: headers.py reads every function of the public headers, and
refuses a declaration that it cannot read."""
import pathlib
import sys
import tempfile

import headers

UNREADABLE = (
    "LS_API int ls_f(int (*fn)(int));", "LS_API int ls_f(int a[3]);", "LS_API int ls_f(int);",
    "LS_API int ls_value;", "extern int ls_f(int a);", "LS_API int ls_f(int a)",
    "typedef struct ls_o { size_t size; int (*fn[2])(int); } ls_o;",
)
READABLE = """#define LS_F(x) \\
    LS_API int no_function(int y);
/* LS_API int in_a_comment(void); */
typedef int (*ls_do_fn)(int a);
typedef struct ls_o {
    size_t size; /* a; b */
    const char *name;
    ls_status (*get)(void *arg, int n);
    float mean[3];
} ls_o;
LS_BEGIN_DECLS
LS_API LS_MUST_USE const char *const *ls_f(ls_do_fn fn, const ls_o *opt,
                                           size_t n, ...) LS_PRINTF(1, 2);
LS_END_DECLS
"""


def read(text):
    with tempfile.TemporaryDirectory() as folder:
        pathlib.Path(folder, "h.h").write_text(text, encoding="utf-8")
        return headers.read(folder)


for one in UNREADABLE:
    try:
        read(one + "\n")
    except SystemExit:
        continue
    raise SystemExit(f"not refused: {one}")

(function,), (options,) = read(READABLE)
assert function.name == "ls_f" and function.returns == "const char *const *", function
assert [p.is_pointer for p in function.parameters] == [True, True, False], function
assert options.name == "ls_o" and options.members == ["size", "name", "get", "mean"], options

include = pathlib.Path(sys.argv[1])
n_declared = sum(headers.strip(p.read_text()).count("LS_API") for p in include.glob("*.h"))
n_read = len(headers.read(include)[0])
assert n_read == n_declared > 0, f"{n_read} functions read, {n_declared} declared"
