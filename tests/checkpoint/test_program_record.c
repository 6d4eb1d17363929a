/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_program_record.c - tests the record of how a process was started: it gives the arguments of
 * this process, and refuses what is no such record.
 */
#include "base/unit.h"
#include "checkpoint/program_record.h"

#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static char name[] = "name of its own";
static char none[] = "";
static char quoted[] = "--x=\"y\"\n";
static char *const arguments[] = {name, none, quoted, quoted, NULL};

/* In a process with the arguments above, which this program starts. */
static int check_own_record(void)
{
    text_buf text = {0};
    program_record r;
    int n = 0;

    if (program_record_append(&text) != LS_OK || program_record_read(text_str(&text), &r) != LS_OK)
        return 1;
    while (n < r.argc && arguments[n] != NULL && strcmp(r.argv[n], arguments[n]) == 0)
        n++;
    if (n != 4 || r.argc != 4 || r.argv[4] != NULL || r.folder[0] != '/' ||
        strstr(r.executable, "test_program_record") == NULL)
        return 2;
    if (strcmp(r.variables[0], "LOCKSTEP_DEVICE=cpu_ref") != 0 ||
        strcmp(r.variables[1], "LOCKSTEP_CONVOLUTIONS") != 0)
        return 3;
    program_record_free(&r);
    text_free(&text);
    return 0;
}

static void a_record_gives_the_arguments_of_the_process(void **state)
{
    int status;
    const pid_t pid = fork();

    LS_UNUSED(state);
    if (pid == 0) {
        (void)setenv("LOCKSTEP_DEVICE", "cpu_ref", 1);
        (void)unsetenv("LOCKSTEP_CONVOLUTIONS");
        (void)execv("/proc/self/exe", arguments);
        _exit(9);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

static void assert_refused(const char *text, const char *words)
{
    program_record r;

    assert_status(program_record_read(text, &r), LS_EFORMAT);
    assert_last_error(words);
    assert_null(r.argv);
}

#define RECORD(command, rest) "{\"command\":" command rest "}"

static void other_texts_are_refused(void **state)
{
    static char many[16384];

    LS_UNUSED(state);
    assert_refused("", "the record of the program");
    assert_refused("[]", "has not 1 to 4096 arguments");
    assert_refused(RECORD("[]", ""), "has not 1 to 4096 arguments");
    assert_refused(RECORD("\"x\"", ""), "has not 1 to 4096 arguments");
    assert_refused(RECORD("[\"x\",3]", ""), "argument 1 of the program is not a text");
    assert_refused(RECORD("[\"x\"]", ""), "has no executable");
    assert_refused(RECORD("[\"x\"]", ",\"executable\":\"/x\",\"folder\":\"\""), "has no folder");
    strcpy(many, "{\"command\":[1");
    for (size_t n = strlen(many); n + 4 < sizeof(many); n += 2)
        memcpy(many + n, ",1", 2);
    strcat(many, "]}");
    assert_refused(many, "has not 1 to 4096 arguments");
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_record_gives_the_arguments_of_the_process),
        cmocka_unit_test(other_texts_are_refused),
    };

    LS_UNUSED(argv);
    if (argc == 4)
        return check_own_record();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
