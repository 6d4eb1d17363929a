/* SPDX-License-Identifier: Apache-2.0 */
/*
 * config.c - the settings table and its readers. Every value is read from the environment at each
 * call, so nothing is cached; lockstep run and ls_init() call config_check() first.
 */
#include "base/config.h"

#include "base/log.h"
#include "base/signal_list.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PREFIX  "LOCKSTEP_"
#define HOUR_MS ((int64_t)3600 * 1000)
#define DAY_MS  ((int64_t)24 * 3600 * 1000)

static const config_entry table[CONFIG_COUNT] = {
    [CONFIG_LOG] =
        {"LOCKSTEP_LOG", CONFIG_TYPE_TEXT, "warn", NULL, 0, 0,
         "log levels: LEVEL or COMPONENT=LEVEL, separated by commas; a level is error, warn, "
         "info, debug or trace"},
    [CONFIG_TRANSPORT] = {"LOCKSTEP_TRANSPORT", CONFIG_TYPE_CHOICE, "auto", "auto|shm|tcp", 0, 0,
                          "how the native backend moves data; auto: shm within a host, tcp between "
                          "hosts"},
    [CONFIG_BACKEND] =
        {"LOCKSTEP_BACKEND", CONFIG_TYPE_TEXT, "auto", NULL, 0, 0,
         "what runs the collectives: auto, native, mpi, mpi:openmpi, mpi:mpich, nccl or gloo"},
    [CONFIG_JOIN_MS] = {"LOCKSTEP_JOIN_TIMEOUT_MS", CONFIG_TYPE_INT, "600000", NULL, 1, 7 * DAY_MS,
                        "how long ranks wait for each other when a group forms"},
    [CONFIG_OP_MS] = {"LOCKSTEP_OP_TIMEOUT_MS", CONFIG_TYPE_INT, "1800000", NULL, 1, 7 * DAY_MS,
                      "how long one operation may take before it breaks the group"},
    [CONFIG_LATE_MS] = {"LOCKSTEP_LATE_MS", CONFIG_TYPE_INT, "10000", NULL, 1, 7 * DAY_MS,
                        "after this long the log names the ranks that others wait for"},
    [CONFIG_MEET_MS] = {"LOCKSTEP_MEET_MS", CONFIG_TYPE_INT, "60000", NULL, 1, 7 * DAY_MS,
                        "lockstep run --elastic: after this long without a rank's answer to a "
                        "failure the others go on without it"},
    [CONFIG_HEARTBEAT_MS] = {"LOCKSTEP_HEARTBEAT_MS", CONFIG_TYPE_INT, "5000", NULL, 2000, HOUR_MS,
                             "after so long a machine that sends nothing counts as lost; lockstep "
                             "run --heartbeat-timeout sets it on all machines"},
    [CONFIG_SEGMENT_BYTES] = {"LOCKSTEP_SEGMENT", CONFIG_TYPE_BYTES, "256K", NULL, 4096,
                              (int64_t)64 << 20, "bytes of one pipelined piece of a message"},
    [CONFIG_PIECE_ELEMENTS] = {"LOCKSTEP_PIECE", CONFIG_TYPE_INT, "1073741824", NULL, 1,
                               (int64_t)1 << 30, "most elements in one call of an MPI library"},
    [CONFIG_CONNECTIONS] =
        {"LOCKSTEP_CONNECTIONS", CONFIG_TYPE_INT, "1", NULL, 1, 8,
         "TCP connections between two ranks of the native backend; several when one does not "
         "use the full bandwidth"},
    [CONFIG_IFACE] = {"LOCKSTEP_IFACE", CONFIG_TYPE_TEXT, "", NULL, 0, 0,
                      "network interface or CIDR for data between hosts; empty: the interface of "
                      "the route to the store"},
    [CONFIG_KEY_FILE] = {"LOCKSTEP_KEY_FILE", CONFIG_TYPE_TEXT, "", NULL, 0, 0,
                         "file with the job's key"},
    [CONFIG_SECURITY] =
        {"LOCKSTEP_SECURITY", CONFIG_TYPE_CHOICE, "auth", "auth|mac|encrypt", 0, 0,
         "protection of TCP connections; auth: both ends are authenticated, mac: also "
         "integrity, encrypt: also confidentiality"},
    [CONFIG_DEVICE] = {"LOCKSTEP_DEVICE", CONFIG_TYPE_TEXT, "cpu", NULL, 0, 0,
                       "the device that holds and computes tensors: cpu (onednn where it is "
                       "installed, else cpu_ref), cuda (the card of this rank), cuda:N, auto (a "
                       "card if one can be used, else cpu), onednn, cpu_ref"},
    [CONFIG_THREADS] = {"LOCKSTEP_THREADS", CONFIG_TYPE_INT, "0", NULL, 0, 1024,
                        "compute threads of a rank; 0: its share of the usable cores"},
    [CONFIG_CONVOLUTIONS] =
        {"LOCKSTEP_CONVOLUTIONS", CONFIG_TYPE_TEXT, "few,rows,winograd,product,pairs", NULL, 0, 0,
         "convolution kernels of Lockstep that the onednn device prefers to oneDNN's where they "
         "apply, separated by commas: few, rows, winograd, product, pairs; onednn: none; with "
         "blocked or "
         "channels_last the layout that convolutions use, whatever is faster"},
    [CONFIG_TF32] = {"LOCKSTEP_TF32", CONFIG_TYPE_CHOICE, "convolutions", "none|convolutions|all",
                     0, 0,
                     "float32 operators that may round their inputs to TF32 (10 bits) on a GPU's "
                     "tensor cores; all: matrix products, too"},
    [CONFIG_DETERMINISTIC] = {"LOCKSTEP_DETERMINISTIC", CONFIG_TYPE_INT, "0", NULL, 0, 1,
                              "1: a GPU computes the same bits in every run; some operators take "
                              "longer"},
    [CONFIG_AUTOTUNE] =
        {"LOCKSTEP_AUTOTUNE", CONFIG_TYPE_INT, "1", NULL, 0, 1,
         "1: a GPU measures up to 8 plans of each convolution at its first use, and the choice is "
         "stored in ~/.cache/lockstep; 0: it takes the plan that cuDNN expects to be the fastest. "
         "With LOCKSTEP_DETERMINISTIC nothing is measured"},
    [CONFIG_CUDA_GRAPH] = {"LOCKSTEP_CUDA_GRAPH", CONFIG_TYPE_INT, "0", NULL, 0, 1,
                           "1: a GPU runs the kernels of a step as CUDA graphs, as with "
                           "--cuda-graph; other devices ignore it"},
    [CONFIG_NCCL_LIBRARY] = {"LOCKSTEP_NCCL_LIBRARY", CONFIG_TYPE_TEXT, "", NULL, 0, 0,
                             "NCCL's or RCCL's library for --backend nccl; empty: libnccl.so.2, "
                             "else librccl.so.1"},
    [CONFIG_CUDA_LIBRARIES] = {"LOCKSTEP_CUDA_LIBRARIES", CONFIG_TYPE_TEXT, "", NULL, 0, 0,
                               "folders, separated by colons, that are searched for cuDNN, "
                               "cuBLASLt and NCCL before those of Python's packages and of the "
                               "dynamic linker"},
    [CONFIG_ALGORITHMS] = {"LOCKSTEP_ALGORITHMS", CONFIG_TYPE_TEXT, "", NULL, 0, 0,
                           "algorithms of operations, before the measured defaults: "
                           "[hosts/]OPERATION:ALGORITHM[<=BYTES][@RANKS], separated by commas"},
    [CONFIG_METRICS_USERS] = {"LOCKSTEP_METRICS_USERS", CONFIG_TYPE_TEXT, "own", NULL, 0, 0,
                              "users of this machine that may read --metrics-port: own (the user "
                              "of the job, and root) or all"},
    [CONFIG_MODULE_DIR] = {"LOCKSTEP_MODULE_DIR", CONFIG_TYPE_TEXT, "", NULL, 0, 0,
                           "first folder searched for liblockstep_*.so"},
};

/* Known names that are not settings: variables that the launcher sets for its ranks, those of the
 * Python package (docs/pytorch.md), and that of quickstart and check (scripts/build). */
static const char *const other_names[] = {
    "LOCKSTEP_RANK",          "LOCKSTEP_WORLD_SIZE",
    "LOCKSTEP_LOCAL_RANK",    "LOCKSTEP_LOCAL_WORLD_SIZE",
    "LOCKSTEP_STORE",         "LOCKSTEP_KEY_FD",
    "LOCKSTEP_JOB",           "LOCKSTEP_GENERATION",
    "LOCKSTEP_AGENT",         "LOCKSTEP_RING_FD",
    "LOCKSTEP_LISTEN_FD",     "LOCKSTEP_TTY",
    "LOCKSTEP_ELASTIC",       "LOCKSTEP_MEMBER",
    "LOCKSTEP_NEW_MEMBER",    "LOCKSTEP_LIFELINE_FD",
    "LOCKSTEP_CRASH_AT",      "LOCKSTEP_NODE_RANK",
    "LOCKSTEP_NNODES",        "LOCKSTEP_AGENT_PROCESS",
    "LOCKSTEP_PID",           "LOCKSTEP_TRACE",
    SIGNAL_LIST_ENV,          "LOCKSTEP_LIBRARY",
    "LOCKSTEP_TORCH_FORM",    "LOCKSTEP_TORCH_KEY",
    "LOCKSTEP_TORCH_REPLACE", "LOCKSTEP_CUDA",
    "LOCKSTEP_TEST_FLIP",     "LOCKSTEP_LOCAL_CORES",
};

const config_entry *config_table(void)
{
    return table;
}

static const char *from_environment(config_id id)
{
    const char *value = getenv(table[id].name); // NOLINT(concurrency-mt-unsafe): no thread sets it

    return value != NULL && *value != '\0' ? value : NULL;
}

const char *config_origin(config_id id)
{
    return from_environment(id) != NULL ? "environment" : "default";
}

/* Whether `value` is one of the choices of "auto|shm|tcp". */
static bool is_choice(const char *choices, const char *value)
{
    const size_t n = strcspn(value, "|");

    if (value[n] != '\0')
        return false;
    for (const char *p = choices; p != NULL; p = strchr(p, '|')) {
        p += *p == '|';
        if (strncmp(p, value, n) == 0 && (p[n] == '|' || p[n] == '\0'))
            return true;
    }
    return false;
}

ls_status config_text(config_id id, const char **out)
{
    const config_entry *e = &table[id];
    const char *value = from_environment(id);
    char shown[64];

    if (value == NULL)
        value = e->default_text;
    if (e->type == CONFIG_TYPE_CHOICE && !is_choice(e->choices, value)) {
        text_printable(shown, sizeof(shown), value);
        return ls_fail(LS_EINVAL, "%s: \"%s\" is not one of %s", e->name, shown, e->choices);
    }
    *out = value;
    return LS_OK;
}

ls_status config_int(config_id id, int64_t *out)
{
    const config_entry *e = &table[id];
    const char *value = from_environment(id);
    char least[32];
    uint64_t bytes;

    LS_ASSERT(e->type == CONFIG_TYPE_INT || e->type == CONFIG_TYPE_BYTES);
    if (value == NULL)
        value = e->default_text;
    if (e->type == CONFIG_TYPE_INT)
        return text_parse_int(value, e->name, e->min, e->max, out);
    LS_TRY(text_parse_bytes(value, e->name, (uint64_t)e->max, &bytes));
    if (bytes < (uint64_t)e->min)
        return ls_fail(LS_EINVAL, "%s: \"%s\" is less than %s", e->name, value,
                       text_bytes(least, sizeof(least), (uint64_t)e->min));
    *out = (int64_t)bytes;
    return LS_OK;
}

static ls_status check_entry(config_id id)
{
    const char *text;
    int64_t number;

    if (table[id].type == CONFIG_TYPE_INT || table[id].type == CONFIG_TYPE_BYTES)
        return config_int(id, &number);
    LS_TRY(config_text(id, &text));
    return id == CONFIG_LOG ? log_configure(text) : LS_OK;
}

static bool is_known(const char *name)
{
    for (size_t i = 0; i < CONFIG_COUNT; i++)
        if (text_equal(table[i].name, name))
            return true;
    for (size_t i = 0; i < LS_COUNT_OF(other_names); i++)
        if (text_equal(other_names[i], name))
            return true;
    return false;
}

/* The setting that a mistyped name stands for, or NULL. */
static const char *nearest_setting(const char *name)
{
    const char *nearest = NULL;
    int least = 3; // at most two typing errors

    for (size_t i = 0; i < CONFIG_COUNT; i++) {
        const int distance = text_edit_distance(name, table[i].name);

        if (distance < least) {
            least = distance;
            nearest = table[i].name;
        }
    }
    return nearest;
}

static void warn_unknown(const char *name)
{
    const char *nearest = nearest_setting(name);

    if (nearest != NULL)
        ls_log(LS_LOG_WARN, "config", "unknown setting %s: did you mean %s?", name, nearest);
    else
        ls_log(LS_LOG_WARN, "config", "unknown setting %s", name);
}

ls_status config_check(void)
{
    for (int i = 0; i < CONFIG_COUNT; i++)
        LS_TRY(check_entry((config_id)i));
    for (char **e = environ; e != NULL && *e != NULL; e++) {
        char name[64];

        (void)text_format(name, sizeof(name), "%.*s", (int)strcspn(*e, "="), *e);
        if (text_starts(name, PREFIX) && !is_known(name))
            warn_unknown(name);
    }
    return LS_OK;
}
