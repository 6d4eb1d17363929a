/* SPDX-License-Identifier: Apache-2.0 */
/* pages.c - writes the pages of pages.h. All texts of the tables are quoted for their format. */
#include "cli/pages/pages.h"

#include "base/flags/flag_table.h"

#include <string.h>

/* Whether a row is a flag that the help lists. */
static bool is_listed(const ls_flags *f, int i)
{
    const ls_flag *flag = flag_at(f, i);

    return flag->kind != LS_FLAG_HEADING && flag->kind != LS_FLAG_ARGUMENT && flag->help != NULL &&
           !flag_is_hidden(f, i);
}

static bool takes_value(const ls_flag *flag)
{
    return flag->kind != LS_FLAG_BOOL && flag->kind != LS_FLAG_ATTACHED_TEXT;
}

/* What the value of a flag is, for completion. */
typedef enum value_kind { VALUE_OTHER, VALUE_FILE, VALUE_FOLDER, VALUE_HOST } value_kind;

static value_kind kind_of_value(const ls_flag *flag)
{
    const char *name;
    const char *meaning;
    const size_t n = (size_t)flag_value_name(flag, &name, &meaning);

    if (!takes_value(flag))
        return VALUE_OTHER;
    if (is_flag_name("FILE", name, n) || is_flag_name("PATH", name, n))
        return VALUE_FILE;
    if (is_flag_name("DIR", name, n) || is_flag_name("FOLDER", name, n))
        return VALUE_FOLDER;
    return is_flag_name("HOST", name, n) ? VALUE_HOST : VALUE_OTHER;
}

static const char *meaning_of(const ls_flag *flag)
{
    const char *name;
    const char *meaning;

    (void)flag_value_name(flag, &name, &meaning);
    return meaning;
}

/* --- man --- */

/* Text of one paragraph; a line feed begins a new line. */
static void add_man(text_buf *out, const char *text)
{
    bool begins_line = true;

    for (; *text != '\0'; text++) {
        if (begins_line && (*text == '.' || *text == '\''))
            text_append(out, "\\&");
        if (*text == '\\')
            text_append(out, "\\e");
        else if (*text == '-')
            text_append(out, "\\-");
        else
            text_append_bytes(out, text, 1);
        begins_line = *text == '\n';
    }
}

static void add_man_head(text_buf *out, const char *name, const char *summary)
{
    text_append(out, ".TH LOCKSTEP");
    for (const char *c = name; *c != '\0'; c++)
        text_append(out, "%c", *c >= 'a' && *c <= 'z' ? *c - 'a' + 'A' : *c);
    text_append(out, " 1 \"\" \"lockstep %s\" \"User Commands\"\n.SH NAME\nlockstep", ls_version());
    add_man(out, name);
    text_append(out, " \\- ");
    add_man(out, summary);
    text_append(out, "\n.SH SYNOPSIS\n.B lockstep");
}

static void add_man_flag(text_buf *out, const ls_flag *flag)
{
    const char *name;
    const char *meaning;
    char standard[256];
    int n = flag_value_name(flag, &name, &meaning);
    const char *before = flag->kind == LS_FLAG_OPTIONAL_TEXT   ? " ["
                         : flag->kind == LS_FLAG_ATTACHED_TEXT ? "[="
                                                               : " ";
    const bool is_optional = strchr(before, '[') != NULL;

    text_append(out, ".TP\n");
    if (flag->letter != 0)
        text_append(out, "\\fB\\-%c\\fR, ", flag->letter);
    text_append(out, "\\fB\\-\\-");
    add_man(out, flag->name);
    text_append(out, "\\fR");
    if (flag->kind != LS_FLAG_BOOL) {
        text_append(out, "%s\\fI%.*s\\fR%s", before, n, name, is_optional ? "]" : "");
    }
    text_append(out, "\n");
    add_man(out, meaning);
    flag_default_text(flag, standard, sizeof(standard));
    if (standard[0] != '\0') {
        text_append(out, " ");
        add_man(out, standard);
    }
    text_append(out, "\n");
}

static void add_man_heading(text_buf *out, const char *heading)
{
    text_append(out, ".SS ");
    add_man(out, heading);
    text_append(out, "\n");
}

void pages_man(const cli_command *c, const ls_flags *flags, text_buf *out)
{
    char name[64];
    const char *heading = NULL;

    text_format(name, sizeof(name), "-%s", c->name);
    add_man_head(out, name, c->summary);
    text_append(out, " ");
    add_man(out, c->name);
    text_append(out, "\n");
    add_man(out, flags->usage);
    text_append(out, "\n.SH DESCRIPTION\n");
    add_man(out, flags->summary);
    text_append(out, "\n.SH OPTIONS\nThe dashes within the name of a flag may be underscores.\n");
    for (int i = 0; i < n_flags(flags); i++) {
        if (flag_at(flags, i)->kind == LS_FLAG_HEADING)
            heading = flag_at(flags, i)->name;
        if (!is_listed(flags, i))
            continue;
        if (heading != NULL)
            add_man_heading(out, heading);
        heading = NULL;
        add_man_flag(out, flag_at(flags, i));
    }
    text_append(out, ".SH SEE ALSO\n.BR lockstep (1)\n");
}

void pages_man_tool(text_buf *out)
{
    const cli_command *c;
    const char *separator = "";

    add_man_head(out, "", "distributed data-parallel training");
    text_append(out, "\n.I COMMAND\n[flags]\n.SH DESCRIPTION\nStarts the ranks of distributed "
                     "programs, supervises and measures them.\n.SH COMMANDS\n");
    for (size_t i = 0; (c = command_at(i)) != NULL; i++) {
        if (c->summary == NULL)
            continue;
        text_append(out, ".TP\n.B lockstep ");
        add_man(out, c->name);
        text_append(out, "\n");
        add_man(out, c->summary);
        text_append(out, "\n");
    }
    text_append(out, ".SH SEE ALSO\n");
    for (size_t i = 0; (c = command_at(i)) != NULL; i++) {
        if (c->summary == NULL)
            continue;
        text_append(out, "%s.BR lockstep\\-", separator);
        add_man(out, c->name);
        text_append(out, " (1)");
        separator = ",\n";
    }
    text_append(out, "\n");
}

/* --- completions --- */

/* 'text' for a shell; fish escapes quotes and backslashes by a backslash, the others leave the
 * quotes for a quote. */
static void add_quoted(text_buf *out, const char *text, bool is_fish)
{
    text_append(out, "'");
    for (; *text != '\0'; text++)
        if (*text == '\'')
            text_append(out, is_fish ? "\\'" : "'\\''");
        else if (*text == '\\' && is_fish)
            text_append(out, "\\\\");
        else
            text_append(out, "%c", *text == '\n' ? ' ' : *text);
    text_append(out, "'");
}

static void add_bash_values(text_buf *out, const ls_flags *flags, value_kind kind,
                            const char *action)
{
    bool is_first = true;

    for (int i = 0; i < n_flags(flags); i++) {
        const ls_flag *flag = flag_at(flags, i);

        if (!is_listed(flags, i) || !takes_value(flag) || kind_of_value(flag) != kind ||
            flag->kind == LS_FLAG_OPTIONAL_TEXT)
            continue;
        text_append(out, "%s--%s", is_first ? "        " : " | ", flag->name);
        if (flag->letter != 0)
            text_append(out, " | -%c", flag->letter);
        is_first = false;
    }
    if (!is_first)
        text_append(out, ") %s return ;;\n", action);
}

static void add_bash(text_buf *out, const cli_command *c, const ls_flags *flags)
{
    text_append(out, "    %s)\n        case $prev in\n", c->name);
    add_bash_values(out, flags, VALUE_FILE, "COMPREPLY=($(compgen -f -- \"$cur\"));");
    add_bash_values(out, flags, VALUE_FOLDER, "COMPREPLY=($(compgen -d -- \"$cur\"));");
    add_bash_values(out, flags, VALUE_HOST, "COMPREPLY=($(compgen -A hostname -- \"$cur\"));");
    add_bash_values(out, flags, VALUE_OTHER, "");
    text_append(out, "        esac\n        flags='");
    for (int i = 0; i < n_flags(flags); i++)
        if (is_listed(flags, i))
            text_append(out, " --%s", flag_at(flags, i)->name);
    text_append(out, "'\n        ;;\n");
}

/* The text of a flag in _arguments: brackets and colons have a meaning there. */
static void add_zsh_meaning(text_buf *to, const char *text)
{
    for (; *text != '\0'; text++) {
        if (strchr("[]:\\", *text) != NULL)
            text_append(to, "\\");
        text_append_bytes(to, *text == '\n' ? " " : text, 1);
    }
}

static void add_zsh_flag(text_buf *out, const ls_flag *flag)
{
    static const char *const actions[] = {"", "_files", "_files -/", "_hosts"};
    text_buf spec = {0};
    const char *name;
    const char *meaning;
    const int n = flag_value_name(flag, &name, &meaning);

    for (int k = 0; k < (flag->letter != 0 ? 2 : 1); k++) {
        text_free(&spec);
        if (k == 0)
            text_append(&spec, "--%s", flag->name);
        else
            text_append(&spec, "-%c", flag->letter);
        text_append(&spec, "[");
        add_zsh_meaning(&spec, meaning);
        text_append(&spec, "]");
        if (takes_value(flag)) {
            text_append(&spec, "%s", flag->kind == LS_FLAG_OPTIONAL_TEXT ? "::" : ":");
            for (int i = 0; i < n; i++)
                text_append(&spec, strchr("[]:\\", name[i]) != NULL ? "\\%c" : "%c", name[i]);
            text_append(&spec, ":%s", actions[kind_of_value(flag)]);
        }
        text_append(out, "        ");
        add_quoted(out, text_str(&spec), false);
        text_append(out, " \\\n");
    }
    text_free(&spec);
}

static void add_zsh(text_buf *out, const cli_command *c, const ls_flags *flags)
{
    text_append(out, "    %s)\n      _arguments \\\n", c->name);
    for (int i = 0; i < n_flags(flags); i++)
        if (is_listed(flags, i))
            add_zsh_flag(out, flag_at(flags, i));
    text_append(out, "        '*::argument:_default'\n      ;;\n");
}

static void add_fish(text_buf *out, const cli_command *c, const ls_flags *flags)
{
    text_append(out, "complete -c lockstep -n __fish_use_subcommand -f -a %s -d ", c->name);
    add_quoted(out, c->summary, true);
    text_append(out, "\n");
    for (int i = 0; i < n_flags(flags); i++) {
        const ls_flag *flag = flag_at(flags, i);
        value_kind kind;

        if (!is_listed(flags, i))
            continue;
        kind = kind_of_value(flag);
        text_append(out, "complete -c lockstep -n '__fish_seen_subcommand_from %s' -l %s", c->name,
                    flag->name);
        if (flag->letter != 0)
            text_append(out, " -s %c", flag->letter);
        if (takes_value(flag) && flag->kind != LS_FLAG_OPTIONAL_TEXT)
            text_append(out, kind == VALUE_FILE     ? " -rF"
                             : kind == VALUE_FOLDER ? " -x -a '(__fish_complete_directories)'"
                             : kind == VALUE_HOST   ? " -x -a '(__fish_print_hostnames)'"
                                                    : " -x");
        text_append(out, " -d ");
        add_quoted(out, meaning_of(flag), true);
        text_append(out, "\n");
    }
}

void pages_begin(pages *p)
{
    const cli_command *c;

    text_append(&p->bash, "# bash completion of lockstep; written by its build\n"
                          "_lockstep()\n{\n"
                          "    local cur=${COMP_WORDS[COMP_CWORD]} flags=\n"
                          "    local prev=${COMP_WORDS[COMP_CWORD-1]}\n"
                          "    COMPREPLY=()\n"
                          "    if [ \"$COMP_CWORD\" -eq 1 ]; then\n"
                          "        COMPREPLY=($(compgen -W '");
    text_append(&p->zsh, "#compdef lockstep\n# written by the build of lockstep\n"
                         "local -a commands\nlocal context state state_descr line\n"
                         "typeset -A opt_args\ncommands=(\n");
    text_append(&p->fish, "# fish completion of lockstep; written by its build\n");
    for (size_t i = 0; (c = command_at(i)) != NULL; i++) {
        text_buf item = {0};

        if (c->summary == NULL)
            continue;
        text_append(&p->bash, "%s ", c->name);
        text_append(&item, "%s:%s", c->name, c->summary);
        text_append(&p->zsh, "  ");
        add_quoted(&p->zsh, text_str(&item), false);
        text_append(&p->zsh, "\n");
        text_free(&item);
    }
    text_append(&p->bash, "help --help --version' -- \"$cur\"))\n        return\n    fi\n"
                          "    case ${COMP_WORDS[1]} in\n");
    text_append(&p->zsh, ")\n_arguments -C '1:command:->command' '*::argument:->argument'\n"
                         "case $state in\ncommand)\n  _describe command commands\n  ;;\nargument)\n"
                         "  case $line[1] in\n");
}

void pages_add(pages *p, const cli_command *c, const ls_flags *flags)
{
    add_bash(&p->bash, c, flags);
    add_zsh(&p->zsh, c, flags);
    add_fish(&p->fish, c, flags);
}

/* Arguments that are not flags are files: programs, data. */
void pages_end(pages *p)
{
    text_append(&p->bash, "    esac\n"
                          "    case $cur in\n"
                          "    -*) COMPREPLY=($(compgen -W \"$flags\" -- \"$cur\")) ;;\n"
                          "    *) COMPREPLY=($(compgen -f -- \"$cur\")) ;;\n"
                          "    esac\n}\n"
                          "complete -o filenames -F _lockstep lockstep\n");
    text_append(&p->zsh, "  esac\n  ;;\nesac\n");
}
