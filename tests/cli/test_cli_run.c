/* SPDX-License-Identifier: Apache-2.0 */
/* test_cli_run.c - flags of the tool: results of right ones, errors of wrong ones. */
#include "launch/job.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define test(name) cmocka_unit_test_teardown(name, job_clean_up)
#define TOOL(...)  job_start(JOB_LIST(JOB_TOOL, __VA_ARGS__), NULL)

/* Ends with `code`, its one line on stderr has `text`, and nothing stands on stdout. */
static void expect_error(job *j, int code, const char *text)
{
    job_expect_code(j, code);
    job_expect(j, j->out.length == 0);
    if (!job_printed(j, 1, text))
        print_message("wanted: %s\n", text);
    job_expect(j, job_printed(j, 1, text));
    job_expect(j, strchr(text_str(&j->err), '\n') == text_str(&j->err) + j->err.length - 1);
    job_clean_up(NULL);
}

static void missing_or_unknown_command_is_an_error(void **state)
{
    job *j = TOOL(NULL);

    LS_UNUSED(state);
    job_expect_code(j, 2);
    job_expect(j, job_printed(j, 0, "usage: lockstep COMMAND"));
    job_clean_up(NULL);
    expect_error(TOOL("rnu"), 2, "lockstep: unknown command rnu");
}

static size_t longest_line(const char *text)
{
    size_t longest = 0;

    for (size_t n = strcspn(text, "\n"); *text != 0; n = strcspn(text, "\n")) {
        longest = n > longest ? n : longest;
        text += n + (text[n] == '\n');
    }
    return longest;
}

static int count_lines(const char *text)
{
    int n = 0;

    for (; *text != 0; text++)
        n += *text == '\n';
    return n;
}

static void help_and_version_exit_with_0(void **state)
{
    static const char *const commands[] = {"run", "join", "bench", "check", "clean", "data"};
    job *j;

    LS_UNUSED(state);
    j = TOOL("--help");
    job_expect_code(j, 0);
    for (size_t i = 0; i < LS_COUNT_OF(commands); i++)
        job_expect(j, job_printed(j, 0, commands[i]));
    j = TOOL("--version");
    job_expect_code(j, 0);
    job_expect(j, text_starts(text_str(&j->out), "lockstep "));
    for (size_t i = 0; i < LS_COUNT_OF(commands); i++) {
        j = TOOL(commands[i], "--help");
        job_expect_code(j, 0);
        job_expect(j, text_starts(text_str(&j->out), "usage: lockstep "));
        job_expect(j, longest_line(text_str(&j->out)) <= 80); /* where there is no terminal */
        job_expect(j, !text_equal(commands[i], "run") || count_lines(text_str(&j->out)) <= 60);
        job_expect(j, j->err.length == 0);
        job_clean_up(NULL);
    }
}

static void wrong_flags_of_run_are_errors_of_one_line(void **state)
{
    LS_UNUSED(state);
    expect_error(TOOL("run"), 2, "no program given");
    expect_error(TOOL("run", "--nproc-per-nod", "2", "true"), 2,
                 "unknown flag --nproc-per-nod: did you mean --nproc-per-node?");
    expect_error(TOOL("run", "-genv", "A", "1", "true"), 2,
                 "unknown flag -genv, which mpirun has: pass the variable with -x NAME=VALUE");
    expect_error(TOOL("run", "--oversubscribe", "-n", "2", "true"), 2,
                 "unknown flag --oversubscribe, which mpirun has: not needed");
    expect_error(TOOL("run", "--bind-to=core", "true"), 2,
                 "unknown flag --bind-to, which mpirun has: pass --numa-binding");
    expect_error(TOOL("run", "-n", "0", "true"), 2, "--nproc-per-node");
    expect_error(TOOL("run", "-n", "two", "true"), 2, "\"two\"");
    expect_error(TOOL("run", "-n", "99999999999999999999", "true"), 2, "--nproc-per-node");
    expect_error(TOOL("run", "-n"), 2, "--nproc-per-node needs a value");
    expect_error(TOOL("run", "--nnodes", "0", "true"), 2, "--nnodes");
    expect_error(TOOL("run", "--nnodes", "3:2", "true"), 2, "--nnodes");
    expect_error(TOOL("run", "--nnodes", "1:2", "true"), 2, "--rdzv-backend c10d");
    expect_error(TOOL("run", "--node-rank", "1", "true"), 2, "--node-rank 1");
    expect_error(TOOL("run", "--nnodes", "2", "--node-rank", "2", "true"), 2, "--node-rank 2");
    expect_error(TOOL("run", "--nnodes", "2", "--rdzv-backend", "c10d", "true"), 2,
                 "--rdzv-endpoint");
    expect_error(TOOL("run", "--nnodes", "2", "--rdzv-backend", "etcd", "true"), 1, "etcd");
    expect_error(TOOL("run", "--nnodes", "2", "--rdzv-conf", "jointime=3", "true"), 2, "jointime");
    expect_error(TOOL("run", "--nnodes", "2", "--token-file", "/none", "true"), 1, "/none");
    expect_error(TOOL("run", "--grace", "-1", "true"), 2, "--grace");
    expect_error(TOOL("run", "--port-range", "5-3", "true"), 2, "--port-range 5-3: must be A-B");
    expect_error(TOOL("run", "--port-range", "5", "true"), 2, "--port-range 5: must be A-B");
    expect_error(TOOL("run", "--port-range", "0-9", "true"), 2, "--port-range 0-9: must be A-B");
    expect_error(TOOL("run", "--port-range", "1-65536", "-H", "127.0.0.1", "true"), 2,
                 "must be A-B");
    expect_error(
        TOOL("run", "--nnodes", "2", "--node-rank", "1", "--rdzv-endpoint", "localhost:0", "true"),
        2, "--rdzv-endpoint localhost:0: give the port");
}

/* What the environment of a rank contains about the store. */
static void expect_store(const char *flag, const char *more, const char *expected)
{
    job *j = TOOL("run", flag, more, "sh", "-c",
                  "echo $TORCHELASTIC_USE_AGENT_STORE $MASTER_ADDR ${MASTER_PORT:+port}");

    job_expect_code(j, 0);
    job_expect(j, text_equal(text_str(&j->out), expected));
    job_clean_up(NULL);
}

static void the_store_is_hosted_where_it_can_be(void **state)
{
    job *holder;
    job *j;
    char port[32];

    LS_UNUSED(state);
    expect_store("--standalone", "--", "True 127.0.0.1 port\n");
    expect_store("--master-addr=127.0.0.2", "--", "True 127.0.0.1 port\n");
    expect_store("--master-addr=192.0.2.1", "--", "False 192.0.2.1 port\n");
    expect_store("--master-addr=localhost", "--store=none", "False localhost port\n");
    expect_store("--store=none", "--", "False 127.0.0.1 port\n");
    expect_error(TOOL("run", "--store=agent", "--master-addr=192.0.2.1", "true"), 2,
                 "--master-addr 192.0.2.1 is not this machine");
    expect_error(TOOL("run", "--store=redis", "true"), 2, "must be agent or none");

    holder = TOOL("run", "sh", "-c", "echo at port $MASTER_PORT; exec cat");
    text_format(port, sizeof(port), "--master-port=%ld", job_await_number(holder, 0, "at port "));
    j = TOOL("run", port, "true");
    job_expect_code(j, 1);
    job_expect(j, job_printed(j, 1, "Address already in use") && job_printed(j, 1, "--store=none"));
}

static void torchruns_flags_are_taken_in_both_spellings(void **state)
{
    static const char *const forms[][3] = {
        {"--nproc-per-node", "2", NULL},
        {"--nproc_per_node", "2", NULL},
        {"--nproc-per-node=2", NULL},
        {"--nproc_per_node=2", NULL},
        {"-n", "2", NULL},
        {"-np", "2", NULL},
        {"--np=2", NULL},
    };

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(forms); i++) {
        const char *argv[8] = {JOB_TOOL, "run", forms[i][0]};
        int n = 3;
        job *j;

        if (forms[i][1] != NULL)
            argv[n++] = forms[i][1];
        argv[n++] = "echo";
        argv[n++] = "-n"; /* the program's own */
        argv[n++] = "hello";
        j = job_start(argv, NULL);
        job_expect_code(j, 0);
        job_expect(j, job_printed(j, 0, "rank 0| hello\n") && job_printed(j, 0, "rank 1| hello\n"));
        job_clean_up(NULL);
    }
}

static void flags_without_effect_are_accepted(void **state)
{
    job *j = TOOL("run", "--standalone", "--nnodes=1:1", "--node_rank=0", "--rdzv_backend=c10d",
                  "--rdzv-endpoint=localhost:0", "--rdzv_conf=timeout=9", "--monitor_interval", "5",
                  "--max_restarts=0", "--start-method=spawn", "--local-addr=127.0.0.1",
                  "--shutdown-timeout=3", "--", "echo", "hello");

    LS_UNUSED(state);
    job_expect_code(j, 0);
    job_expect(j, text_equal(text_str(&j->out), "hello\n") && j->err.length == 0);
}

static void flags_may_come_from_the_environment(void **state)
{
    job *j =
        job_start(JOB_LIST(JOB_TOOL, "run", "echo", "hello"), JOB_LIST("PET_NPROC_PER_NODE=2"));

    LS_UNUSED(state);
    job_expect_code(j, 0);
    job_expect(j, job_printed(j, 0, "rank 1| hello\n"));
    j = job_start(JOB_LIST(JOB_TOOL, "run", "-n", "1", "echo", "hello"),
                  JOB_LIST("PET_NPROC_PER_NODE=2", "PET_STANDALONE=1"));
    job_expect_code(j, 0);
    job_expect(j, text_equal(text_str(&j->out), "hello\n"));
    job_clean_up(NULL);
    expect_error(job_start(JOB_LIST(JOB_TOOL, "run", "true"), JOB_LIST("PET_NODE_RANK=x")), 2,
                 "PET_NODE_RANK");
}

static void index_of_a_pod_is_its_node_rank_in_jobs_of_several_nodes(void **state)
{
    const char *index = "JOB_COMPLETION_INDEX=7";
    job *j = job_start(JOB_LIST(JOB_TOOL, "run", "echo", "hello"), JOB_LIST(index));

    LS_UNUSED(state);
    job_expect_code(j, 0);
    job_clean_up(NULL);
    expect_error(job_start(JOB_LIST(JOB_TOOL, "run", "true"), JOB_LIST(index, "PET_NNODES=2")), 2,
                 "--node-rank 7 with --nnodes 2");
    job_clean_up(NULL);
    expect_error(job_start(JOB_LIST(JOB_TOOL, "run", "--node-rank", "3", "true"),
                           JOB_LIST(index, "PET_NNODES=2")),
                 2, "--node-rank 3 with --nnodes 2");
    job_clean_up(NULL);
    expect_error(job_start(JOB_LIST(JOB_TOOL, "run", "--nnodes", "2", "true"),
                           JOB_LIST("JOB_COMPLETION_INDEX=x")),
                 2, "JOB_COMPLETION_INDEX");
}

static void python_scripts_run_in_the_interpreter(void **state)
{
    job *j = job_start(JOB_LIST(JOB_TOOL, "run", "script.py", "a"), JOB_LIST("PYTHON_EXEC=echo"));

    LS_UNUSED(state);
    job_expect_code(j, 0);
    job_expect(j, text_equal(text_str(&j->out), "-u script.py a\n"));
    j = job_start(JOB_LIST(JOB_TOOL, "run", "-m", "module", "a"), JOB_LIST("PYTHON_EXEC=echo"));
    job_expect_code(j, 0);
    job_expect(j, text_equal(text_str(&j->out), "-u -m module a\n"));
    j = job_start(JOB_LIST(JOB_TOOL, "run", "--no-python", "script.py"),
                  JOB_LIST("PYTHON_EXEC=echo"));
    job_expect_code(j, 127);
}

static void programs_in_the_folder_of_the_tool_need_no_path(void **state)
{
    job *j = TOOL("run", "-n", "2", "message_passing");

    LS_UNUSED(state);
    job_expect_code(j, 0);
    job_expect(j, job_printed(j, 0, "rank 1| Rank 1 has received 1 from rank 0.\n"));
    j = TOOL("run", "lockstep", "--version");
    job_expect_code(j, 0);
    j = TOOL("run", "true"); /* as PATH has it */
    job_expect_code(j, 0);
}

/* Hides the GPUs of the machine that the test runs on. */
#define NO_GPU "CUDA_VISIBLE_DEVICES=", "HIP_VISIBLE_DEVICES="

static void auto_is_one_rank_per_core(void **state)
{
    job *j = job_start(JOB_LIST(JOB_TOOL, "run", "-n", "auto", "--no-prefix", "sh", "-c",
                                "unset OMP_NUM_THREADS; echo $WORLD_SIZE ranks, $(nproc) cores"),
                       JOB_LIST(NO_GPU));
    int ranks = 0, cores = 0;

    LS_UNUSED(state);
    job_expect_code(j, 0);
    job_expect(j, sscanf(text_str(&j->out), "%d ranks, %d cores", &ranks, &cores) == 2);
    job_expect(j, ranks >= 1 && ranks <= cores); /* a quota may leave fewer than the mask */
}

/* --- check --- */

static void ranks_for_gpus_need_a_gpu(void **state)
{
    job *j = job_start(JOB_LIST(JOB_TOOL, "run", "--nproc_per_node=gpu", "true"), JOB_LIST(NO_GPU));

    LS_UNUSED(state);
    expect_error(j, 2, "auto or cpu starts one rank per core");
    j = job_start(JOB_LIST(JOB_TOOL, "join", "-n", "gpu", "--insecure", "127.0.0.1:1"),
                  JOB_LIST(NO_GPU));
    job_await_end(j);
    job_expect(j, job_printed(j, 1, "--nproc-per-node gpu: "));
    expect_error(TOOL("run", "-n", "xpu", "true"), 1, "--nproc-per-node xpu");
}

/* One rank a GPU of a driver that is made up (its GPU 1 is lost), with and without
 * CUDA_VISIBLE_DEVICES. */
static void gpu_and_auto_are_one_rank_per_gpu(void **state)
{
    static const char *const words[] = {"gpu", "auto"};
    char folder[] = "/tmp/lockstep-test-gpu-XXXXXX";
    char library[96];
    char path[64];

    LS_UNUSED(state);
    assert_non_null(mkdtemp(folder));
    text_format(library, sizeof(library), "%s/libnvidia-ml.so.1", folder);
    text_format(path, sizeof(path), "LD_LIBRARY_PATH=%s", folder);
    assert_int_equal(symlink(FAKE_NVML_LIBRARY, library), 0);
    for (size_t i = 0; i < LS_COUNT_OF(words); i++) {
        job *j = job_start(JOB_LIST(JOB_TOOL, "run", "-n", words[i], "--ranks", "0", "--no-prefix",
                                    "sh", "-c", "echo of $WORLD_SIZE"),
                           JOB_LIST(path, "FAKE_NVML=3", "CUDA_VISIBLE_DEVICES"));
        job_expect_code(j, 0);
        job_expect(j, job_printed(j, 0, "of 2\n"));
        j = job_start(JOB_LIST(JOB_TOOL, "run", "-n", words[i], "--ranks", "0", "--no-prefix", "sh",
                               "-c", "echo of $WORLD_SIZE"),
                      JOB_LIST(path, "FAKE_NVML=3", "CUDA_VISIBLE_DEVICES=1"));
        job_expect_code(j, 0);
        job_expect(j, job_printed(j, 0, "of 1\n"));
        job_clean_up(NULL);
    }
    (void)unlink(library);
    (void)rmdir(folder);
}

static void settings_are_shown_with_their_origin(void **state)
{
    job *j =
        job_start(JOB_LIST(JOB_TOOL, "check", "--settings"),
                  JOB_LIST("LOCKSTEP_LATE_MS=123", "LOCKSTEP_TRANSPRT=tcp", "LOCKSTEP_SEGMENT="));

    LS_UNUSED(state);
    job_expect_code(j, 0);
    job_expect(j, strstr(text_str(&j->out), "LOCKSTEP_LATE_MS") != NULL);
    job_expect(j, job_printed(j, 0, "= 123      (environment)"));
    job_expect(j, job_printed(j, 0, "= 256K     (default)"));
    job_expect(j, job_printed(j, 1, "did you mean LOCKSTEP_TRANSPORT?"));
}

static void wrong_setting_is_an_error(void **state)
{
    LS_UNUSED(state);
    expect_error(
        job_start(JOB_LIST(JOB_TOOL, "check", "--settings"), JOB_LIST("LOCKSTEP_TRANSPORT=pigeon")),
        2, "LOCKSTEP_TRANSPORT: \"pigeon\"");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        test(missing_or_unknown_command_is_an_error),
        test(help_and_version_exit_with_0),
        test(wrong_flags_of_run_are_errors_of_one_line),
        test(the_store_is_hosted_where_it_can_be),
        test(torchruns_flags_are_taken_in_both_spellings),
        test(flags_without_effect_are_accepted),
        test(flags_may_come_from_the_environment),
        test(index_of_a_pod_is_its_node_rank_in_jobs_of_several_nodes),
        test(python_scripts_run_in_the_interpreter),
        test(programs_in_the_folder_of_the_tool_need_no_path),
        test(auto_is_one_rank_per_core),
        test(ranks_for_gpus_need_a_gpu),
        test(gpu_and_auto_are_one_rank_per_gpu),
        test(settings_are_shown_with_their_origin),
        test(wrong_setting_is_an_error),
    };

    return cmocka_run_group_tests_name("cli run", tests, NULL, NULL);
}
