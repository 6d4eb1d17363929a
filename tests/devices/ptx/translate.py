#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""translate.py PTX C [KERNEL...] - writes the kernels of a PTX file, or some, as C functions.

Each runs one thread (ptx.h). An instruction becomes a call of the C function of its name
(ptx_ops.h, ptx_run.c), with underscores for dots, so that an unknown one does not compile.
Registers hold bits.
"""
import re
import sys

TYPES = {"b8": "uint8_t", "u8": "uint8_t", "s8": "int8_t", "b16": "uint16_t", "u16": "uint16_t",
         "s16": "int16_t", "b32": "uint32_t", "u32": "uint32_t", "s32": "int32_t",
         "f32": "uint32_t", "b64": "uint64_t", "u64": "uint64_t", "s64": "int64_t",
         "f64": "uint64_t", "pred": "bool"}
SPECIAL = {"%tid.x": "t->thread", "%ctaid.x": "t->block", "%ntid.x": "t->n_threads",
           "%nctaid.x": "t->n_blocks", "%envreg1": "(uint32_t)(t->workspace >> 32)",
           "%envreg2": "(uint32_t)t->workspace"}
SPECIAL.update({f"%{name}.{axis}": "0" for name in ("tid", "ctaid") for axis in "yz"})
SPECIAL.update({f"%{name}.{axis}": "1" for name in ("ntid", "nctaid") for axis in "yz"})
OF_THREAD = ("atom", "bar", "barrier", "cp", "membar", "shfl", "trap")  # executed by ptx_run.c
OF_MATRICES = ("ldmatrix", "mma")  # executed by ptx_matrix.c
WITH_CARRY = ("addc", "subc", "madc")
SHARED = re.compile(r"\.shared \.align (\d+) \.([busf]\d+)\s+([\w$]+)(?:\[(\d+)\])?;")
CONSTANT = re.compile(
    r"^\.(?:global|const) \.align (\d+) \.b8 ([\w$]+)\[(\d+)\] = \{([^}]*)\};", re.M)
FUNCTION = re.compile(r"^(?:\.visible |\.weak )?\.(entry|func)\s([^{;]*)\{", re.M)
PARAMETER = re.compile(r"\.param (?:\.align \d+ )?\.([bufs]\d+)\s+([\w$]+)(?:\[(\d+)\])?")
STATEMENT = re.compile(r"\s*(?:([$\w]+):|([{}])|([^{};][^;]*);)")
SHARED_GAP = 16  # bytes between two shared arrays, which no access may touch


def size_of(ctype_name):
    return int(re.search(r"\d+", ctype_name).group()) // 8


def c_name(text):
    return text.replace("%", "").replace("$", "")


def split_operands(text):
    """At commas outside of brackets."""
    return [o.strip() for o in re.findall(r"(?:\{[^}]*\}|\([^)]*\)|\[[^\]]*\]|[^,])+", text)]


class Function:
    """The statements of one kernel or function as lines of C."""

    def __init__(self, shared, first_line):
        self.shared = shared  # names of shared arrays
        self.line = first_line
        self.out = []

    def operand(self, text):
        if text in SPECIAL:
            return SPECIAL[text]
        if text.startswith(("%", "!")):
            return c_name(text)
        if text[:2] in ("0f", "0d"):
            return f"0x{text[2:]}u"
        if re.fullmatch(r"-?\d+", text):
            return f"{int(text) % 2**64:#x}u"
        name, _, offset = text.partition("+")
        where = c_name(name) if name in self.shared else f"(uint64_t)(uintptr_t){c_name(name)}"
        return f"({where} + {offset})" if offset else where

    def address(self, text):
        base, _, offset = text.strip("[] ").partition("+")
        return f"{self.operand(base.strip())} + ({offset or 0})"

    def declare(self, text):
        kind, *words = text.split()
        if kind == ".reg":
            ctype = TYPES[words[0][1:]]
            for name in "".join(words[1:]).split(","):
                many = re.fullmatch(r"(%\w+)<(\d+)>", name)
                names = [f"{many[1]}{i}" for i in range(int(many[2]))] if many else [name]
                self.out.append(f"{ctype} " + ", ".join(f"{c_name(n)} = 0" for n in names) + ";")
        elif kind in (".local", ".param"):
            name, _, count = words[-1].rstrip("]").partition("[")
            self.out.append(f"_Alignas(16) unsigned char {c_name(name)}[{count or 8}];")
        elif kind not in (".shared", ".pragma"):
            raise ValueError(f"line {self.line}: {text}")

    def access(self, parts, operands):
        """ld or st."""
        is_load = parts[0] == "ld"
        ctype = TYPES[parts[-1]]
        values, address = operands if is_load else reversed(operands)
        values = [v.strip() for v in values.strip("{}").split(",")]
        space = next((p for p in parts if p in ("param", "local", "shared")), "global")
        name = ("load_" if is_load else "store_") + (space if space == "shared" else "global")
        strong = [p for p in parts if p in ("volatile", "acquire")]
        strength = f"PTX_{strong[0].upper()}" if strong else "PTX_WEAK"
        where = self.address(address)
        if space in ("param", "local"):  # of the thread alone
            copy = f"memcpy(v, (const void *)({where}), sizeof(v));" if is_load else \
                f"memcpy((void *)({where}), v, sizeof(v));"
        else:
            copy = f"{name}(t, {self.line}, {where}, v, sizeof(v), {strength});"
        if is_load:
            moves = " ".join(f"{c_name(v)} = v[{i}];" for i, v in enumerate(values) if v != "_")
            return f"{{ {ctype} v[{len(values)}]; {copy} {moves} }}"
        given = ", ".join(self.operand(v) for v in values)
        return f"{{ const {ctype} v[] = {{{given}}}; {copy} }}"

    def move_parts(self, parts, operands):
        """mov between a register and several that have its parts."""
        whole = TYPES[parts[-1]]
        packs = operands[1].startswith("{")
        names = [n.strip() for n in operands[packs].strip("{}").split(",")]
        bits = 8 * size_of(parts[-1]) // len(names)
        if packs:
            terms = (f"({whole}){self.operand(n)} << {i * bits}" for i, n in enumerate(names))
            return f"{c_name(operands[0])} = " + " | ".join(terms) + ";"
        moves = (f"{c_name(n)} = (uint{bits}_t)(v >> {i * bits});"
                 for i, n in enumerate(names) if n != "_")
        return f"{{ const {whole} v = {self.operand(operands[1])}; " + " ".join(moves) + " }"

    def of_matrices(self, opcode, operands):
        """An instruction whose result and operands are lists of registers, or an address."""
        results = operands[0].strip("{}").split(",")
        given = [self.operand(r.strip()) for o in operands[1:] for r in o.strip("{}").split(",")
                 if o.startswith("{")]
        given = f"(const uint32_t[]){{{', '.join(given)}}}" if given else self.address(operands[1])
        moves = " ".join(f"{c_name(r.strip())} = v[{i}];" for i, r in enumerate(results))
        name = opcode.replace(".", "_")
        return f"{{ uint32_t v[{len(results)}]; {name}(t, {self.line}, {given}, v); {moves} }}"

    def instruction(self, opcode, operands):
        parts = opcode.split(".")
        base = parts[0]
        if base == "bra":
            return f"goto {c_name(operands[0])};"
        if base == "ret":
            return "return;"
        if base in ("ld", "st"):
            return self.access(parts, operands)
        if base == "mov" and "{" in "".join(operands):
            return self.move_parts(parts, operands)
        if base in OF_MATRICES:
            return self.of_matrices(opcode, operands)
        if base == "call":
            results, function, given = operands
            return f"{function}(t, {results.strip('()')}, {given.strip('()')});"
        has_result = base not in ("bar", "barrier", "cp", "membar", "trap")
        given = [self.address(o) if o.startswith("[") else self.operand(o)
                 for o in operands[has_result:]]
        if base in OF_THREAD:
            given = ["t", str(self.line)] + given
        elif base in WITH_CARRY or "cc" in parts:
            given.append("&carry")
        result = operands[0] if has_result else ""
        if base == "shfl":
            result, _, inside = result.partition("|")
            given.append(f"&{c_name(inside)}" if inside else "NULL")
        call = f"{c_name(opcode).replace('.', '_')}({', '.join(given)});"
        return f"{c_name(result)} = {call}" if has_result else call

    def statement(self, text):
        if text.startswith("."):
            self.declare(text)
            return
        guard = re.match(r"@(!?%\w+)\s+", text)
        opcode, _, rest = text[guard.end() if guard else 0:].partition(" ")
        done = self.instruction(opcode, split_operands(rest))
        self.out.append(f"if ({self.operand(guard[1])}) {{ {done} }}" if guard else done)

    def body(self, text):
        at = 0
        while match := STATEMENT.match(text, at):
            self.line += text.count("\n", at, match.start(match.lastindex))
            label, brace, words = match.groups()
            if words:
                self.statement(" ".join(words.split()))
            else:
                self.out.append(brace or f"{c_name(label)}:;")
            self.line += text.count("\n", match.start(match.lastindex), match.end())
            at = match.end()
        if text[at:].strip():
            raise ValueError(f"line {self.line}: {text[at:].strip()[:60]}")


def end_of_braces(text, start):
    depth = 1
    for match in re.compile(r"[{}]").finditer(text, start):
        depth += 1 if match.group() == "{" else -1
        if depth == 0:
            return match.start()
    raise ValueError("a brace is not closed")


def shared_layout(arrays, body):
    """The declaration of the arrays that the body uses, and their bytes together."""
    used = [a for a in arrays if re.search(re.escape(a[2]) + r"\b", body)]
    offset = 0
    offsets = []
    for align, kind, name, count in used:
        offset = -(-offset // int(align)) * int(align)
        offsets.append(f"{c_name(name)} = {offset}")
        offset += size_of(kind) * int(count or 1) + SHARED_GAP
    return f"enum {{ {', '.join(offsets)} }};" if used else "", offset


def translate(text, only):
    text = re.sub(r"//[^\n]*", "", text)
    arrays = SHARED.findall(text)
    constants = CONSTANT.findall(text)
    out = ['#include "devices/ptx/ptx_ops.h"']
    for align, name, count, values in constants:
        out.append(f"static const _Alignas({align}) unsigned char {name}[{count}] = {{{values}}};")
    kernels = []
    functions = []
    for match in FUNCTION.finditer(text):
        kind, head = match.groups()
        body = text[match.end():end_of_braces(text, match.end())]
        parameters = PARAMETER.findall(head)
        code = Function({a[2] for a in arrays}, text.count("\n", 0, match.end()) + 1)
        if kind == "entry":
            symbol = re.match(r"_Z(\d+)(\w+)", head)
            name = symbol[2][:int(symbol[1])].replace("_on_card", "")
            if only and name not in only:
                continue
            layout, shared_bytes = shared_layout(arrays, body)
            kernels.append(f'{{"{name}", {name}, {parameters[0][2]}, {shared_bytes}}},')
            signature = f"static void {name}(ptx_thread *t)"
            start = f"const void *{c_name(parameters[0][1])} = t->args; {layout}"
        else:
            name = re.match(r"\s*\(.*?\)\s*(\w+)", head, re.S)[1]
            names = ", ".join(f"unsigned char *{c_name(p[1])}" for p in parameters)
            signature, start = f"static void {name}(ptx_thread *t, {names})", ""
            out.append(f"{signature};")
        code.body(body)
        functions += [signature, "{", "uint32_t carry = 0; (void)carry;", start] + code.out + ["}"]
    table = [f"{{{name}, sizeof({name})}}," for _, name, _, _ in constants]
    return "\n".join(out + functions +
                     ["const ptx_range ptx_constants[] = {", *table, "{0}};",
                      "const ptx_kernel ptx_kernels[] = {", *kernels, "{0}};", ""])


if __name__ == "__main__":
    with open(sys.argv[1], encoding="ascii") as source:
        translated = translate(source.read(), set(sys.argv[3:]))
    with open(sys.argv[2], "w", encoding="ascii") as target:
        target.write(translated)
