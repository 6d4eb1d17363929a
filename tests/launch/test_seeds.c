/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The command lines of docs/seeds-equivalents.md as a user types them, on machines that are network
 * namespaces: a PyTorch script becomes the program of this build, `python3 -m
 * torch.distributed.launch` and `torchrun` become `lockstep run`; addresses are the lab's.
 */
#include "launch/lab_scene.h"

#include <stdlib.h>
#include <unistd.h>

#define test(name) cmocka_unit_test_teardown(name, lab_clean_up)

enum { NODES_MAX = 3 };

#define LAUNCH "lockstep run --nproc_per_node=2 "
#define MPIRUN                                                                                     \
    "mpirun.openmpi --oversubscribe --mca oob_tcp_if_include 10.77.0.0/24 "                        \
    "--mca plm_rsh_agent $RSH -x LOCKSTEP_KEY_FILE "
#define MPI_FLAGS                                                                                  \
    "-x MASTER_PORT=1234 -x GPU_PER_NODE=2 -x PATH -bind-to none -map-by slot "                    \
    "-mca pml ob1 -mca btl ^openib "
#define SHORT_MNIST "--steps 2 --batch-size 8"

/* Runs the command line in a shell on the node, with this build's programs in PATH. */
static job *type(int node, const char *line)
{
    char number[16];
    char script[2048];

    text_format(number, sizeof(number), "%d", node);
    text_format(script, sizeof(script), "PATH=" LOCKSTEP_BIN ":$PATH; exec %s", line);
    return job_start(JOB_LIST(LS_NETLAB_SH, "exec", number, "bash", "-c", script),
                     JOB_LIST(key_variable, lab_variable, "LS_NETLAB_SH=" LS_NETLAB_SH, "RSH=" RSH,
                              "LOCKSTEP_THREADS=1", "OMPI_ALLOW_RUN_AS_ROOT=1",
                              "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"));
}

/* Every line on a node of its own; all end with code 0. */
static void run_lines(const char *const *lines, int n, job **jobs)
{
    lab_build(n > 2 ? n : 2, "");
    for (int i = 0; i < n; i++)
        jobs[i] = type(i, lines[i]);
    for (int i = 0; i < n; i++)
        job_expect_code(jobs[i], 0);
    for (int i = 0; i < n; i++)
        job_expect_gone(jobs[i]);
}

/* message_passing: these ranks have received. */
static void expect_received(job *j, int first, int end)
{
    for (int rank = first; rank < end; rank++) {
        char line[80];

        text_format(line, sizeof(line), "Rank %d has received 1 from rank 0.", rank);
        job_expect(j, job_printed(j, 0, line));
    }
}

/* --- mnist-distributed.py --- */

static void mnist_runs_8_ranks_on_one_machine(void **state)
{
    job *j;

    LS_UNUSED(state);
    run_lines(JOB_LIST("mnist -n 1 -g 8 -i 0 " SHORT_MNIST), 1, &j);
    job_expect(j, job_printed(j, 0, "2 steps on 8 ranks"));
}

static void mnist_runs_8_and_2_ranks_on_two_machines(void **state)
{
    job *jobs[2];

    LS_UNUSED(state);
    run_lines(JOB_LIST("env MASTER_ADDR=10.77.0.10 MASTER_PORT=8888 "
                       "mnist -n 2 -g 8,2 -i 0 " SHORT_MNIST,
                       "env MASTER_ADDR=10.77.0.10 MASTER_PORT=8888 "
                       "mnist -n 2 -g 8,2 -i 1 " SHORT_MNIST),
              2, jobs);
    job_expect(jobs[0], job_printed(jobs[0], 0, "2 steps on 10 ranks"));
}

/* --- main.py of PyTorch's imagenet example --- */

static void imagenet_runs_on_two_machines(void **state)
{
#define IMAGENET                                                                                   \
    "imagenet -a resnet50 --dist-url tcp://10.77.0.10:29511 --dist-backend native "                \
    "--multiprocessing-distributed --world-size 2 --dummy --image-size 32 -b 4 --steps 1 "         \
    "--nproc 1 --save \"\" --save-best \"\" "
    job *jobs[2];

    LS_UNUSED(state);
    run_lines(JOB_LIST(IMAGENET "--rank 0", IMAGENET "--rank 1"), 2, jobs);
    job_expect(jobs[0], job_printed(jobs[0], 0, "1 step on 2 ranks"));
}

/* --- torch.distributed.launch --- */

static void message_passing_runs_on_one_machine(void **state)
{
    job *j;

    LS_UNUSED(state);
    run_lines(JOB_LIST(LAUNCH "--nnodes=1 --node_rank=0 --master_addr=localhost "
                              "--master_port=1234 message_passing --backend=native"),
              1, &j);
    expect_received(j, 1, 2);
}

static void message_passing_runs_and_ends_on_two_machines(void **state)
{
#define MESSAGES                                                                                   \
    "--nnodes=2 --master_addr=10.77.0.10 --master_port=1234 message_passing --backend=native"
    job *jobs[2];

    LS_UNUSED(state);
    run_lines(JOB_LIST(LAUNCH "--node_rank=0 " MESSAGES, LAUNCH "--node_rank=1 " MESSAGES), 2,
              jobs);
    expect_received(jobs[0], 1, 2);
    expect_received(jobs[1], 2, 4);
}

#define RESNET                                                                                     \
    "resnet --backend=native --use_syn --steps_syn 1 --batch_size 2 --image_size 32 --num_epochs " \
    "1"

static void resnet_runs_synthetic_images_on_two_machines(void **state)
{
#define RESNET_ON_TWO "--nnodes=2 --master_addr=10.77.0.10 --master_port=1234 " RESNET
    job *jobs[2];

    LS_UNUSED(state);
    run_lines(
        JOB_LIST(LAUNCH "--node_rank=0 " RESNET_ON_TWO, LAUNCH "--node_rank=1 " RESNET_ON_TWO), 2,
        jobs);
    job_expect(jobs[0], job_printed(jobs[0], 0, "1 step on 4 ranks"));
}

/* --- mpirun --- */

static void need_open_mpi(void)
{
    if (access("/usr/bin/mpirun.openmpi", X_OK) != 0)
        skip();
}

static void mpirun_starts_the_programs_on_one_machine(void **state)
{
    job *j;

    LS_UNUSED(state);
    need_open_mpi();
    run_lines(JOB_LIST(MPIRUN "-np 2 -x MASTER_ADDR=localhost " MPI_FLAGS
                              "message_passing --backend=native"),
              1, &j);
    expect_received(j, 1, 2);
    (void)lab_clean_up(NULL);
    run_lines(JOB_LIST(MPIRUN "-np 2 -x MASTER_ADDR=localhost " MPI_FLAGS RESNET), 1, &j);
    job_expect(j, job_printed(j, 0, "1 step on 2 ranks"));
}

static void mpirun_starts_the_programs_on_two_machines(void **state)
{
    job *j;

    LS_UNUSED(state);
    need_open_mpi();
    run_lines(JOB_LIST(MPIRUN "-np 4 -H 10.77.0.10:2,10.77.0.11:2 -x MASTER_ADDR=10.77.0.10 "
                              "-x NCCL_DEBUG=INFO " MPI_FLAGS "message_passing --backend=native"),
              1, &j);
    expect_received(j, 1, 4);
    (void)lab_clean_up(NULL);
    run_lines(JOB_LIST(MPIRUN "-np 4 -H 10.77.0.10:2,10.77.0.11:2 -x MASTER_ADDR=10.77.0.10 "
                              "-x NCCL_DEBUG=INFO " MPI_FLAGS RESNET),
              1, &j);
    job_expect(j, job_printed(j, 0, "1 step on 4 ranks"));
}

/* --- torchrun in a Slurm allocation --- */

/* The same line on every machine; the one at the endpoint hosts the rendezvous. */
static void expect_elastic(int nodes)
{
    const char *lines[NODES_MAX];
    char line[256];
    job *jobs[NODES_MAX];
    int n_started[NODES_MAX] = {0};

    text_format(line, sizeof(line),
                LAUNCH "--nnodes=%d --rdzv_id=100 --rdzv_backend=c10d "
                       "--rdzv_endpoint=10.77.0.10:29400 elastic_ddp",
                nodes);
    for (int i = 0; i < nodes; i++)
        lines[i] = line;
    run_lines(lines, nodes, jobs);
    for (int rank = 0; rank < 2 * nodes; rank++) {
        char text[80];

        text_format(text, sizeof(text), "Start running basic DDP example on rank %d.", rank);
        for (int i = 0; i < nodes; i++)
            n_started[i] += job_printed(jobs[i], 0, text);
    }
    for (int i = 0; i < nodes; i++)
        job_expect(jobs[i], n_started[i] == 2);
}

static void elastic_ddp_runs_on_one_two_and_three_machines(void **state)
{
    LS_UNUSED(state);
    for (int nodes = 1; nodes <= NODES_MAX; nodes++) {
        expect_elastic(nodes);
        (void)lab_clean_up(NULL);
    }
}

/* Without --ipc=host: System V and POSIX shared memory of its own, and a full /dev/shm. */
static void container_needs_no_space_in_dev_shm(void **state)
{
    job *j;

    LS_UNUSED(state);
    run_lines(JOB_LIST("unshare --mount --ipc sh -c 'mount -t tmpfs -o size=4k none /dev/shm && "
                       "head -c 4096 /dev/zero >/dev/shm/full && "
                       "lockstep run -n 2 lockstep bench all_reduce -b 16M -e 16M -n 2 -w 0'"),
              1, &j);
    job_expect(j, job_printed(j, 0, "Out of bounds values : 0 OK"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        test(mnist_runs_8_ranks_on_one_machine),
        test(mnist_runs_8_and_2_ranks_on_two_machines),
        test(imagenet_runs_on_two_machines),
        test(message_passing_runs_on_one_machine),
        test(message_passing_runs_and_ends_on_two_machines),
        test(resnet_runs_synthetic_images_on_two_machines),
        test(mpirun_starts_the_programs_on_one_machine),
        test(mpirun_starts_the_programs_on_two_machines),
        test(elastic_ddp_runs_on_one_two_and_three_machines),
        test(container_needs_no_space_in_dev_shm),
    };

    return cmocka_run_group_tests(tests, lab_make_key, lab_remove_key);
}
