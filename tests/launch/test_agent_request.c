/* SPDX-License-Identifier: Apache-2.0 */
/* The launch request that an agent writes for machines that join by themselves. */
#include "base/unit.h"

#include "launch/agent/streams/agent_request.h"

static void request_has_the_program_and_the_folder_but_no_key(void **state)
{
    char program[] = "train";
    char flag[] = "--lr=0.1";
    char *argv[] = {program, flag, NULL};
    const job_spec job = {.argv = argv, .grace_ms = 7000};
    const agent_spec spec = {.job = &job, .rendezvous = {.max_nodes = 3}};
    const agent_context ctx = {.spec = &spec};
    const agent_output output = {.ctx = &ctx};
    const net_key no_key = {0};
    static launch_request got; /* large */
    wire_writer w = {0};
    frame f;

    LS_UNUSED(state);
    assert_ok(agent_request_write(&output, &w));
    f = (frame){.type = REMOTE_LAUNCH_REQUEST, .body = w.data, .bytes = w.bytes};
    assert_ok(launch_request_read(&f, &got));
    assert_string_equal(got.job.argv[0], "train");
    assert_string_equal(got.job.argv[1], "--lr=0.1");
    assert_null(got.job.argv[2]);
    assert_int_equal(got.folder[0], '/');
    assert_int_equal(got.n_nodes, 3);
    assert_int_equal(got.job.grace_ms, 7000);
    assert_memory_equal(&got.key, &no_key, sizeof(no_key));
    launch_request_free(&got);
    wire_writer_free(&w);
}

static void request_of_a_job_of_functions_names_the_remedy(void **state)
{
    const job_spec job = {.argv = NULL};
    const agent_spec spec = {.job = &job};
    const agent_context ctx = {.spec = &spec};
    const agent_output output = {.ctx = &ctx};
    wire_writer w = {0};

    LS_UNUSED(state);
    assert_int_equal(agent_request_write(&output, &w), LS_EUNSUPPORTED);
    assert_last_error("started by its program itself: start that program on this machine, too");
    wire_writer_free(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(request_has_the_program_and_the_folder_but_no_key),
        cmocka_unit_test(request_of_a_job_of_functions_names_the_remedy),
    };

    return cmocka_run_group_tests_name("launch agent request", tests, NULL, NULL);
}
