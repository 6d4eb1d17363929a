/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd_check.c - lockstep check --settings: every LOCKSTEP_* setting, its value, and where that comes from.
 */
#include "cli/cli.h"

#include "base/config.h"

#include <stdlib.h>

static void print_setting(config_id id)
{
    const config_entry *entry = &config_table()[id];
    const char *origin = config_origin(id);
    const char *given = getenv(entry->name); // NOLINT(concurrency-mt-unsafe): nobody sets it
    const char *value = given != NULL && !text_equal(origin, "default") ? given : entry->standard;

    print_out("%-24s = %-8s (%s)\n", entry->name, value[0] != 0 ? value : "\"\"", origin);
    print_out("    %s%s%s\n", entry->help, entry->choices != NULL ? ": " : "",
              entry->choices != NULL ? entry->choices : "");
}

int cmd_check(int argc, char **argv)
{
    int settings = 0;
    int help = 0;
    const ls_flag table[] = {
        {"settings", 0, LS_FLAG_BOOL, &settings, 0, 0,
         "print all settings and where their values come from"},
        {"help", 'h', LS_FLAG_BOOL, &help, 0, 0, "print this text"},
    };
    const ls_flags flags = {.size = sizeof(flags),
                            .program = "lockstep check",
                            .usage = "--settings",
                            .summary = "Shows what the library would do here.",
                            .tables = {table},
                            .n = {2}};
    ls_status st = ls_flags_parse(&flags, argc, argv, NULL);

    if (st == LS_OK && (help || !settings))
        return print_help(&flags);
    if (st == LS_OK)
        st = config_check();
    if (st != LS_OK)
        return print_failure("check", st);
    for (int i = 0; i < CONFIG_COUNT; i++)
        print_setting((config_id)i);
    return 0;
}
