/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd_pages.c - lockstep pages DIR: writes man pages and completions of all commands, from the
 * tables that their --help prints. The build calls it.
 */
#include "cli/cli.h"
#include "cli/pages/pages.h"

#include "base/file.h"

#include <errno.h>
#include <sys/stat.h>

typedef struct page_writer {
    const char *folder;
    const cli_command *command; /* whose --help runs */
    pages completions;
    ls_status status;
} page_writer;

static ls_status make_folder(const char *folder, const char *name)
{
    char path[4096];

    text_format(path, sizeof(path), "%s/%s", folder, name);
    return mkdir(path, 0777) == 0 || errno == EEXIST ? LS_OK : ls_fail_errno("%s", path);
}

static ls_status write_page(const char *folder, const char *name, text_buf *text)
{
    char path[4096];
    ls_status st = text_status(text);

    text_format(path, sizeof(path), "%s/%s", folder, name);
    if (st == LS_OK)
        st = file_replace(path, text_str(text), text->length);
    text_free(text);
    return st;
}

static void take_flags(void *arg, const ls_flags *flags)
{
    page_writer *p = arg;
    text_buf man = {0};
    char name[128];

    text_format(name, sizeof(name), "man1/lockstep-%s.1", p->command->name);
    pages_man(p->command, flags, &man);
    pages_add(&p->completions, p->command, flags);
    if (p->status == LS_OK)
        p->status = write_page(p->folder, name, &man);
    text_free(&man);
}

static void visit_commands(page_writer *p)
{
    static char help[] = "--help";

    print_help_to(take_flags, p);
    for (size_t i = 0; (p->command = command_at(i)) != NULL; i++) {
        char name[64];
        char *argv[] = {name, help, NULL};

        text_format(name, sizeof(name), "%s", p->command->name);
        if (p->command->summary != NULL)
            (void)p->command->run(2, argv);
    }
    print_help_to(NULL, NULL);
}

static ls_status write_pages(page_writer *p)
{
    static const char *const folders[] = {"", "man1", "bash", "zsh", "fish"};
    text_buf man = {0};

    for (size_t i = 0; i < LS_COUNT_OF(folders); i++)
        LS_TRY(make_folder(p->folder, folders[i]));
    pages_begin(&p->completions);
    visit_commands(p);
    pages_end(&p->completions);
    LS_TRY(p->status);
    LS_TRY(write_page(p->folder, "bash/lockstep", &p->completions.bash));
    LS_TRY(write_page(p->folder, "zsh/_lockstep", &p->completions.zsh));
    LS_TRY(write_page(p->folder, "fish/lockstep.fish", &p->completions.fish));
    pages_man_tool(&man);
    return write_page(p->folder, "man1/lockstep.1", &man);
}

int cmd_pages(int argc, char **argv)
{
    page_writer p = {.folder = argc == 2 ? argv[1] : NULL};
    ls_status st;

    if (p.folder == NULL) {
        print_error("lockstep pages: usage: lockstep pages DIR\n");
        return 2;
    }
    st = write_pages(&p);
    text_free(&p.completions.bash);
    text_free(&p.completions.zsh);
    text_free(&p.completions.fish);
    return st == LS_OK ? 0 : print_failure("pages", st);
}
