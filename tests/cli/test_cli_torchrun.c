/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_cli_torchrun.c - command lines of torchrun and torch.distributed.launch, under both names.
 */
#include "harness/cpu_text.h"
#include "launch/job.h"
#include "launch/isolate/binding.h"

#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#define test(name)    cmocka_unit_test_teardown(name, job_clean_up)
#define TORCHRUN      LOCKSTEP_BIN "/torchrun"
#define TOOL(...)     job_start(JOB_LIST(JOB_TOOL, "run", __VA_ARGS__), NULL)
#define AS_TORCH(...) job_start(JOB_LIST(TORCHRUN, __VA_ARGS__), JOB_LIST("PYTHON_EXEC=echo"))

static void expect_error(job *j, int code, const char *text)
{
    job_expect_code(j, code);
    job_expect(j, j->out.length == 0 && job_printed(j, 1, text));
    job_expect(j, strchr(text_str(&j->err), '\n') == text_str(&j->err) + j->err.length - 1);
    job_clean_up(NULL);
}

static void expect_out(job *j, const char *text)
{
    job_expect_code(j, 0);
    job_expect(j, text_equal(text_str(&j->out), text));
    job_clean_up(NULL);
}

/* --- by that name --- */

static void every_failure_of_torchrun_has_code_1(void **state)
{
    job *j = AS_TORCH("--nproc_per_node=2", "--no_python", "sh", "-c", "exit 7");

    LS_UNUSED(state);
    job_expect_code(j, 1);
    job_expect(j, job_printed(j, 1, "exited with code 7"));
    j = AS_TORCH("--no-python", "sh", "-c", "kill -9 $$");
    job_expect_code(j, 1);
    j = AS_TORCH("--no-python", "sleep", "100");
    (void)job_find(j, JOB_RANK, 0);
    assert_int_equal(kill(j->pid, SIGTERM), 0);
    job_expect_code(j, 1);
    j = AS_TORCH("--no-python", "true");
    job_expect_code(j, 0);
}

static void expect_grace(job *j, const char *seconds)
{
    char line[64];

    text_format(line, sizeof(line), "the ranks have %s s to end", seconds);
    (void)job_find(j, JOB_RANK, 0);
    assert_int_equal(kill(j->pid, SIGTERM), 0);
    job_await_end(j);
    job_expect(j, job_printed(j, 1, line));
    job_clean_up(NULL);
}

static void shutdown_timeout_may_come_as_torchruns_variable(void **state)
{
    static const char variable[] = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT=7";

    LS_UNUSED(state);
    expect_grace(job_start(JOB_LIST(TORCHRUN, "--no-python", "sleep", "100"), JOB_LIST(variable)),
                 "7.0");
    expect_grace(job_start(JOB_LIST(JOB_TOOL, "run", "--shutdown_timeout", "8", "sleep", "100"),
                           JOB_LIST(variable)),
                 "8.0");
    expect_error(
        job_start(JOB_LIST(TORCHRUN, "train.py"), JOB_LIST("TORCH_ELASTIC_SHUTDOWN_TIMEOUT=soon")),
        2, "TORCH_ELASTIC_SHUTDOWN_TIMEOUT");
    expect_error(AS_TORCH("--print-completion", "bash"), 1, "--print-completion bash: ");
}

static void every_program_of_torchrun_is_a_script(void **state)
{
    LS_UNUSED(state);
    expect_out(AS_TORCH("train", "--lr", "1"), "-u train --lr 1\n");
    expect_out(AS_TORCH("-m", "pkg.train"), "-u -m pkg.train\n");
    expect_out(AS_TORCH("--no_python", "echo", "x"), "x\n");
}

static void errors_and_help_of_torchrun_have_its_name(void **state)
{
    job *j = AS_TORCH("--help=all");

    LS_UNUSED(state);
    job_expect_code(j, 0);
    job_expect(j, text_starts(text_str(&j->out), "usage: torchrun [flags] PROG"));
    job_expect(j, job_printed(j, 0, "(30)"));
    expect_error(AS_TORCH("--nproc-pro-node", "2", "x.py"), 2, "torchrun: unknown flag");
    expect_error(AS_TORCH(NULL), 2, "torchrun: no program given");
}

/* --- flags that torchrun has --- */

static void all_of_torchruns_flags_are_accepted_in_both_spellings(void **state)
{
    LS_UNUSED(state);
    expect_out(AS_TORCH("--nnodes=1:1", "--nproc_per_node", "1", "--rdzv_backend=c10d",
                        "--rdzv_endpoint", "localhost:0", "--rdzv_id=7", "--rdzv_conf=timeout=9",
                        "--standalone", "--max_restarts=0", "--monitor_interval=0.1",
                        "--start_method=fork", "--event_log_handler=null", "--role=trainer",
                        "--redirects=0", "--tee=0", "--local_ranks_filter=0", "--node_rank=0",
                        "--master_addr=127.0.0.1", "--master_port=29500", "--local_addr=localhost",
                        "--logs_specs=default", "--signals_to_handle=SIGTERM,SIGINT",
                        "--shutdown_timeout=5", "x.py"),
               "-u x.py\n");
    expect_out(AS_TORCH("--nnodes", "1", "--event-log-handler", "null", "--logs-specs", "default",
                        "--local-ranks-filter", "0", "--use-env", "-r", "0", "-t", "0", "x.py"),
               "-u x.py\n");
}

/* PyTorch's own tests start torchrun so. */
static void flags_of_torchrun_may_be_abbreviated(void **state)
{
    LS_UNUSED(state);
    expect_out(AS_TORCH("--stand", "--nnode", "1", "--nproc_per=1", "--redirect=0", "x.py"),
               "-u x.py\n");
    expect_error(AS_TORCH("--no", "x.py"), 2,
                 "ambiguous flag --no: it may be --no-python or --node-rank");
    expect_error(TOOL("--stand", "true"), 2, "unknown flag --stand");
}

static void settings_of_the_rendezvous_may_have_blanks_and_quotes(void **state)
{
    LS_UNUSED(state);
    expect_out(AS_TORCH("--rdzv-conf=\"timeout=900, join_timeout = 600,\"", "x.py"), "-u x.py\n");
    expect_out(AS_TORCH("--rdzv-conf", "'join_timeout=600 ,is_host=1', ", "x.py"), "-u x.py\n");
    expect_error(TOOL("--rdzv-conf", "timeout=9, jointime = 3", "true"), 2,
                 "--rdzv-conf: unknown key \"jointime\"");
    expect_error(TOOL("--rdzv-conf", " join_timeout", "true"), 2, "\"join_timeout\" is not key");
}

static void unresolved_endpoint_is_named(void **state)
{
    job *j = TOOL("--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=no-such-host.invalid:1",
                  "--rdzv-conf=join_timeout=0.1", "--insecure", "true");

    LS_UNUSED(state);
    job_expect_code(j, 1);
    job_expect(j, job_printed(j, 1, "no-such-host.invalid:1: cannot resolve no-such-host.invalid"));
}

static void unsupported_values_are_errors_of_one_line(void **state)
{
    LS_UNUSED(state);
    expect_error(TOOL("--logs-specs", "mine", "true"), 1, "--logs-specs mine: plug-ins");
    expect_error(TOOL("--numa-binding", "moon", "true"), 2, "node, socket, exclusive");
    expect_error(TOOL("--signals-to-handle", "SIGKILL", "true"), 2,
                 "--signals-to-handle: \"SIGKILL\" is none of");
    expect_error(TOOL("-r", "4", "true"), 2, "--redirects: \"4\" is not 0, 1 (stdout)");
    expect_error(TOOL("-t", "0:1,x", "true"), 2, "--tee: \"x\" is not");
    expect_error(TOOL("--ranks", "all", "true"), 2, "--ranks: \"all\" is not a list");
    expect_error(TOOL("--local-ranks-filter", "1:2", "true"), 2, "--local-ranks-filter: \"1:2\"");
    expect_error(TOOL("--pass-local-rank=plus", "true"), 2, "dash or underscore");
    expect_error(TOOL("-m", "--no-python", "true"), 2, "exclude each other");
}

/* The kernel reports these cores for each rank. */
static void expect_bound(job *j, binding_kind kind, int n)
{
    static topology machine;
    binding_gpus gpus;
    cpu_mask allowed;

    assert_ok(topology_read("", &machine));
    cpu_mask_of_process(&allowed);
    binding_read_gpus("", NULL, &gpus);
    job_expect_code(j, 0);
    for (int rank = 0; rank < n; rank++) {
        rank_binding b;
        char cores[256];
        char line[300];

        assert_ok(binding_choose(&machine, &allowed, &gpus, kind, rank, n, &b));
        cpu_mask_text(&b.cores, cores, sizeof(cores));
        if (n == 1)
            text_format(line, sizeof(line), "Cpus_allowed_list:\t%s\n", cores);
        else
            text_format(line, sizeof(line), "rank %d| Cpus_allowed_list:\t%s\n", rank, cores);
        job_expect(j, job_printed(j, 0, line));
    }
    job_clean_up(NULL);
}

#define SHOW_CORES "sh", "-c", "grep Cpus_allowed_list: /proc/self/status"

static void ranks_run_on_the_cores_of_their_binding(void **state)
{
    job *j;

    LS_UNUSED(state);
    expect_bound(TOOL("--no-fold", "-n", "2", "--numa-binding", "node", SHOW_CORES), BINDING_NODE,
                 2);
    expect_bound(TOOL("-n", "1", "--numa-binding", "exclusive", SHOW_CORES), BINDING_EXCLUSIVE, 1);
    expect_bound(TOOL("--no-fold", "-n", "2", "--numa-binding", "core-complex", SHOW_CORES),
                 BINDING_CORE_COMPLEX, 2);
    j = TOOL("-n", "1000", "--numa-binding", "exclusive", "true");
    job_expect_code(j, 1);
    job_expect(j, job_printed(j, 1, "--numa-binding exclusive: NUMA node"));
}

/* --- the program's arguments --- */

static void local_rank_is_passed_as_by_launch(void **state)
{
    job *j = TOOL("-n", "2", "--pass-local-rank", "echo", "a", "b");

    LS_UNUSED(state);
    job_expect_code(j, 0);
    job_expect(j, job_printed(j, 0, "rank 0| --local-rank=0 a b\n"));
    job_expect(j, job_printed(j, 0, "rank 1| --local-rank=1 a b\n"));
    expect_out(TOOL("--pass-local-rank=dash", "echo"), "--local-rank=0\n");
    expect_out(TOOL("--pass_local_rank=underscore", "echo"), "--local_rank=0\n");
    expect_out(job_start(JOB_LIST(JOB_TOOL, "run", "echo"), JOB_LIST("PET_PASS_LOCAL_RANK=dash")),
               "--local-rank=0\n");
    expect_out(AS_TORCH("--pass-local-rank", "x.py", "a"), "-u x.py --local-rank=0 a\n");
}

static void the_macro_is_replaced_in_arguments(void **state)
{
    job *j = TOOL("-n", "2", "echo", "--gpu=${local_rank}", "$$");

    LS_UNUSED(state);
    job_expect_code(j, 0);
    job_expect(j, job_printed(j, 0, "rank 0| --gpu=0 $$\n") &&
                      job_printed(j, 0, "rank 1| --gpu=1 $$\n"));
}

static void run_path_runs_a_script_of_any_name(void **state)
{
    job *j = job_start(JOB_LIST(JOB_TOOL, "run", "--run-path", "script", "a"),
                       JOB_LIST("PYTHON_EXEC=echo"));

    LS_UNUSED(state);
    expect_out(j, "-u script a\n");
}

static void a_virtual_local_rank_sees_one_device(void **state)
{
    static const char show[] = "echo $LOCAL_RANK of $LOCAL_WORLD_SIZE sees $CUDA_VISIBLE_DEVICES";
    job *j =
        job_start(JOB_LIST(JOB_TOOL, "run", "-n", "3", "--virtual-local-rank", "sh", "-c", show),
                  JOB_LIST("CUDA_VISIBLE_DEVICES=4,GPU-7"));

    LS_UNUSED(state);
    job_expect_code(j, 0);
    job_expect(j, job_printed(j, 0, "rank 0| 0 of 3 sees 4\n"));
    job_expect(j, job_printed(j, 0, "rank 1| 0 of 3 sees GPU-7\n"));
    job_expect(j, job_printed(j, 0, "rank 2| 0 of 3 sees\n")); /* there is none for it */
    j = job_start(JOB_LIST(JOB_TOOL, "run", "-n", "2", "--virtual-local-rank", "sh", "-c", show),
                  JOB_LIST("CUDA_VISIBLE_DEVICES"));
    job_expect_code(j, 0);
    job_expect(j, job_printed(j, 0, "rank 1| 0 of 2 sees 1\n"));
}

/* --- signals --- */

static void listed_signals_stop_the_job(void **state)
{
    job *j = TOOL("--signals-to-handle", "SIGUSR1", JOB_ACTOR, "orderly", "0");

    LS_UNUSED(state);
    job_await_text(j, 0, "rank 0 is ready");
    assert_int_equal(kill(j->pid, SIGUSR1), 0);
    job_expect_code(j, 128 + SIGUSR1);
    job_expect(j, job_printed(j, 0, "rank 0 was asked by signal 10")); /* SIGUSR1 */
}

/* An ignored SIGHUP (nohup) stays ignored; a signal that kills the launcher ends its ranks. */
static void signals_that_are_not_listed_are_left_alone(void **state)
{
    job *j = job_start(JOB_LIST("sh", "-c",
                                "trap '' HUP; exec " JOB_TOOL
                                " run --signals-to-handle SIGTERM " JOB_ACTOR " orderly 0"),
                       NULL);

    LS_UNUSED(state);
    job_await_text(j, 0, "rank 0 is ready");
    assert_int_equal(kill(j->pid, SIGHUP), 0);
    job_read_output(j, 200);
    job_expect(j, !j->has_ended);
    assert_int_equal(kill(j->pid, SIGTERM), 0);
    job_expect_code(j, 143);
    j = TOOL("--signals-to-handle", "SIGTERM", JOB_ACTOR, "stubborn");
    job_await_text(j, 0, "rank 0 is ready");
    assert_int_equal(kill(j->pid, SIGHUP), 0);
    job_expect_code(j, 128 + SIGHUP);
    job_expect_gone(j);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        test(every_failure_of_torchrun_has_code_1),
        test(shutdown_timeout_may_come_as_torchruns_variable),
        test(every_program_of_torchrun_is_a_script),
        test(errors_and_help_of_torchrun_have_its_name),
        test(flags_of_torchrun_may_be_abbreviated),
        test(settings_of_the_rendezvous_may_have_blanks_and_quotes),
        test(unresolved_endpoint_is_named),
        test(all_of_torchruns_flags_are_accepted_in_both_spellings),
        test(unsupported_values_are_errors_of_one_line),
        test(ranks_run_on_the_cores_of_their_binding),
        test(local_rank_is_passed_as_by_launch),
        test(the_macro_is_replaced_in_arguments),
        test(run_path_runs_a_script_of_any_name),
        test(a_virtual_local_rank_sees_one_device),
        test(listed_signals_stop_the_job),
        test(signals_that_are_not_listed_are_left_alone),
    };

    return cmocka_run_group_tests_name("cli torchrun", tests, NULL, NULL);
}
