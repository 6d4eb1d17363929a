/* SPDX-License-Identifier: Apache-2.0 */
/*
 * build_id.c - finds the linker's build id among the notes of the running program. Called by the
 * check of several hosts, which compares builds.
 */
#include "host/build_id.h"

#include "base/text.h"

#include <elf.h>
#include <link.h>
#include <string.h>

typedef struct found_id {
    char *buf;
    size_t n;
} found_id;

/* Notes follow each other: sizes, type, name, content; name and content are padded to 4 bytes. */
static void look_through(const char *at, size_t bytes, const found_id *out)
{
    ElfW(Nhdr) note;

    while (bytes >= sizeof(note)) {
        size_t name_bytes;
        size_t content_bytes;
        memcpy(&note, at, sizeof(note));
        name_bytes = ((size_t)note.n_namesz + 3) & ~(size_t)3;
        content_bytes = ((size_t)note.n_descsz + 3) & ~(size_t)3;
        at += sizeof(note);
        bytes -= sizeof(note);
        if (name_bytes > bytes || content_bytes > bytes - name_bytes)
            return;
        if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == 4 && memcmp(at, "GNU", 4) == 0)
            for (size_t i = 0; i < note.n_descsz && 2 * i + 2 < out->n; i++)
                text_format(out->buf + 2 * i, 3, "%02x", (unsigned char)at[name_bytes + i]);
        at += name_bytes + content_bytes;
        bytes -= name_bytes + content_bytes;
    }
}

/* The first object is the program itself. */
static int take_program(struct dl_phdr_info *info, size_t size, void *arg)
{
    LS_UNUSED(size);
    for (int i = 0; i < info->dlpi_phnum; i++)
        if (info->dlpi_phdr[i].p_type == PT_NOTE)
            look_through((const char *)info->dlpi_addr + info->dlpi_phdr[i].p_vaddr, // NOLINT
                         info->dlpi_phdr[i].p_memsz, arg);
    return 1;
}

const char *build_id_text(char *buf, size_t n)
{
    found_id out = {buf, n};

    text_format(buf, n, "unknown");
    dl_iterate_phdr(take_program, &out);
    return buf;
}
