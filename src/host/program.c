/* SPDX-License-Identifier: Apache-2.0 */
/*
 * program.c - reads an ELF file's headers and its list of libraries, and searches PATH. The file is
 * untrusted input: every number is checked. Called by the agent to recognize MPI programs and to
 * explain why a program did not start, and by lockstep run.
 */
#include "host/program.h"

#include "base/file.h"
#include "base/text.h"

#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SEGMENTS_MOST = 64, ENTRIES_MOST = 512, PATH_MOST = 4096 };

typedef struct elf {
    int fd;
    int n_segments;
    ElfW(Phdr) segments[SEGMENTS_MOST];
} elf;

static bool read_at(int fd, uint64_t at, void *out, size_t n)
{
    return at <= INT64_MAX && pread(fd, out, n, (off_t)at) == (ssize_t)n;
}

static bool read_segments(elf *e)
{
    const unsigned char native = sizeof(void *) == 8 ? ELFCLASS64 : ELFCLASS32;
    ElfW(Ehdr) header;

    if (!read_at(e->fd, 0, &header, sizeof(header)) ||
        memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 || header.e_ident[EI_CLASS] != native ||
        header.e_phentsize != sizeof(e->segments[0]) || header.e_phnum > SEGMENTS_MOST)
        return false;
    e->n_segments = header.e_phnum;
    return read_at(e->fd, header.e_phoff, e->segments,
                   (size_t)e->n_segments * sizeof(e->segments[0]));
}

/* The file offset of a virtual address. */
static bool offset_of(const elf *e, uint64_t address, uint64_t *at)
{
    for (int i = 0; i < e->n_segments; i++) {
        const ElfW(Phdr) *s = &e->segments[i];
        if (s->p_type == PT_LOAD && address >= s->p_vaddr && address - s->p_vaddr < s->p_filesz) {
            *at = s->p_offset + (address - s->p_vaddr);
            return true;
        }
    }
    return false;
}

static int read_entries(const elf *e, ElfW(Dyn) entries[ENTRIES_MOST])
{
    for (int i = 0; i < e->n_segments; i++) {
        const ElfW(Phdr) *s = &e->segments[i];
        const size_t n = s->p_filesz / sizeof(entries[0]);
        const size_t taken = n < ENTRIES_MOST ? n : ENTRIES_MOST;
        if (s->p_type == PT_DYNAMIC)
            return read_at(e->fd, s->p_offset, entries, taken * sizeof(entries[0])) ? (int)taken
                                                                                    : 0;
    }
    return 0;
}

/* The name may be at the end of the file, so only the bytes to compare are read. */
static bool name_starts(int fd, uint64_t at, const char *library)
{
    char name[64];
    const size_t n = strlen(library);

    return n <= sizeof(name) && read_at(fd, at, name, n) && memcmp(name, library, n) == 0;
}

static bool is_linked(int fd, const char *library)
{
    elf e = {.fd = fd};
    ElfW(Dyn) entries[ENTRIES_MOST];
    uint64_t names = 0;
    bool has_names = false;
    int n;

    if (!read_segments(&e))
        return false;
    n = read_entries(&e, entries);
    for (int i = 0; i < n && !has_names; i++)
        has_names = entries[i].d_tag == DT_STRTAB && offset_of(&e, entries[i].d_un.d_ptr, &names);
    for (int i = 0; i < n && has_names && entries[i].d_tag != DT_NULL; i++)
        if (entries[i].d_tag == DT_NEEDED &&
            name_starts(fd, names + entries[i].d_un.d_val, library))
            return true;
    return false;
}

/* Finds the first file of this name in PATH for which access() allows `mode`. */
static bool find_in_path(const char *program, int mode, char path[PATH_MOST])
{
    const char *folders = getenv("PATH"); // NOLINT(concurrency-mt-unsafe): no thread sets it

    while (folders != NULL && *folders != 0) {
        const size_t n = strcspn(folders, ":");

        text_format(path, PATH_MOST, "%.*s%s%s", (int)n, folders, n > 0 ? "/" : "", program);
        if (access(path, mode) == 0)
            return true;
        folders += n + (folders[n] == ':');
    }
    return false;
}

bool program_is_in_path(const char *program)
{
    char path[PATH_MOST];

    return find_in_path(program, X_OK, path);
}

/* The file that was meant: the path, a file of PATH, or one of this folder. */
static bool find_meant(const char *program, char path[PATH_MOST])
{
    const bool is_path = strchr(program, '/') != NULL;

    if (!is_path && find_in_path(program, F_OK, path))
        return true;
    text_format(path, PATH_MOST, "%s%s", is_path ? "" : "./", program);
    return access(path, F_OK) == 0;
}

const char *program_advice(char *buf, size_t n, const char *program, int error)
{
    char path[PATH_MOST];
    struct stat info;

    buf[0] = 0;
    if ((error != ENOENT && error != EACCES) || !find_meant(program, path) ||
        stat(path, &info) != 0)
        return buf;
    if (S_ISDIR(info.st_mode))
        return text_format(buf, n, "; %s is a folder", path);
    if (access(path, X_OK) != 0)
        return text_format(buf, n,
                           "; %s is not executable: run chmod +x %s, or put its interpreter before "
                           "it (sh %s)",
                           path, path, path);
    if (strchr(program, '/') == NULL && text_starts(path, "./"))
        return text_format(buf, n, "; it is in this folder: %s", path);
    if (error == ENOENT)
        return text_format(buf, n,
                           "; %s is there, but the interpreter in its first line, or the loader of "
                           "its format, is not",
                           path);
    return buf;
}

/* Opens the program that execvp() would run; -1 on failure. */
static int open_program(const char *program)
{
    char path[PATH_MOST];

    if (strchr(program, '/') == NULL && getenv("PATH") != NULL) { // NOLINT(concurrency-mt-unsafe)
        if (!find_in_path(program, X_OK, path))
            return -1;
        program = path;
    }
    return open(program, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
}

bool program_needs(const char *program, const char *library)
{
    int fd = open_program(program);
    const bool needs = fd >= 0 && is_linked(fd, library);

    file_close(&fd);
    return needs;
}
