/* SPDX-License-Identifier: Apache-2.0 */
/* metrics_text.c - writes a job's status for Prometheus: pure. Called by agent_metrics.c. */
#include "launch/status/metrics_text.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

/* What a value needs of its rank to be there. */
typedef enum metrics_need { NEED_RANK, NEED_OPERATIONS, NEED_PROGRESS } metrics_need;

typedef struct rank_metric {
    const char *name;
    const char *type;
    const char *help;
    metrics_need need;
    size_t offset; /* of a double in status_rank; of no meaning with `value` */
    double (*value)(const status_rank *r);
} rank_metric;

static double is_up(const status_rank *r)
{
    return !text_equal(r->state, "ended") && !text_equal(r->state, "failed");
}

static double is_late(const status_rank *r)
{
    return r->is_late;
}

static double waiting_seconds(const status_rank *r)
{
    return r->waits_s > 0 ? r->waits_s : 0;
}

static double step(const status_rank *r)
{
    return (double)r->step;
}

static double epoch(const status_rank *r)
{
    return (double)r->epoch;
}

#define FIELD(name) offsetof(status_rank, name), NULL

static const rank_metric metrics[] = {
    {"lockstep_rank_up", "gauge", "1 while the process of the rank runs.", NEED_RANK, 0, is_up},
    {"lockstep_rank_late", "gauge", "1 while another rank waits for this rank for a second.",
     NEED_RANK, 0, is_late},
    {"lockstep_rank_resident_memory_bytes", "gauge", "Resident memory of the rank.", NEED_RANK,
     FIELD(memory_bytes)},
    {"lockstep_rank_cpu_seconds_total", "counter", "Processor time of the rank.", NEED_RANK,
     FIELD(cpu_s)},
    {"lockstep_rank_operations_total", "counter", "Collectives and messages started.",
     NEED_OPERATIONS, FIELD(operations)},
    {"lockstep_rank_operation_bytes_total", "counter", "Payload of operations that have ended.",
     NEED_OPERATIONS, FIELD(operation_bytes)},
    {"lockstep_rank_operation_seconds_total", "counter",
     "Durations of operations that have ended, which may overlap.", NEED_OPERATIONS,
     FIELD(operation_s)},
    {"lockstep_rank_received_bytes_total", "counter",
     "Bytes received from other ranks by the native backend.", NEED_OPERATIONS,
     FIELD(received_bytes)},
    {"lockstep_rank_waiting_seconds", "gauge", "Age of the last operation if it has not ended.",
     NEED_OPERATIONS, 0, waiting_seconds},
    {"lockstep_rank_step", "gauge", "Steps of the optimizer.", NEED_PROGRESS, 0, step},
    {"lockstep_rank_epoch", "gauge", "Epochs that have ended.", NEED_PROGRESS, 0, epoch},
    {"lockstep_rank_step_seconds", "gauge", "Duration of the last step.", NEED_PROGRESS,
     FIELD(step_s)},
    {"lockstep_rank_samples_total", "counter", "Samples that the rank has trained on.",
     NEED_PROGRESS, FIELD(samples)},
    {"lockstep_rank_loss", "gauge", "Loss of the last report.", NEED_PROGRESS, FIELD(loss)},
    {"lockstep_rank_device_memory_bytes", "gauge", "Memory of the accelerator in use.",
     NEED_PROGRESS, FIELD(device_bytes)},
};

static double value_of(const rank_metric *m, const status_rank *r)
{
    double value;

    if (m->value != NULL)
        return m->value(r);
    memcpy(&value, (const char *)r + m->offset, sizeof(value));
    return value;
}

/* A label's value: backslash, quote and line feed are escaped. */
static void append_label(text_buf *out, const char *value)
{
    for (; *value != '\0'; value++)
        if (*value == '\\' || *value == '"')
            text_append(out, "\\%c", *value);
        else if (*value == '\n')
            text_append(out, "\\n");
        else
            text_append_bytes(out, value, 1);
}

static void append_value(text_buf *out, double value)
{
    if (isnan(value))
        text_append(out, " NaN\n");
    else if (isinf(value))
        text_append(out, value > 0 ? " +Inf\n" : " -Inf\n");
    else
        text_append(out, " %.15g\n", value);
}

static void append_head(text_buf *out, const char *name, const char *type, const char *help)
{
    text_append(out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void append_rank(text_buf *out, const char *name, const status_rank *r)
{
    text_append(out, "%s{rank=\"%d\",host=\"", name, r->rank);
    append_label(out, r->host);
    text_append(out, "\"");
}

static bool has(const status_rank *r, metrics_need need)
{
    return need == NEED_RANK || (need == NEED_OPERATIONS ? r->has_operations : r->has_progress);
}

/* A metric that no rank has is left out with its head. */
static void append_ranks(text_buf *out, const job_status *v, const rank_metric *m)
{
    bool has_head = false;

    for (int i = 0; i < v->n_ranks; i++) {
        if (!has(&v->ranks[i], m->need))
            continue;
        if (!has_head)
            append_head(out, m->name, m->type, m->help);
        has_head = true;
        append_rank(out, m->name, &v->ranks[i]);
        text_append(out, "}");
        append_value(out, value_of(m, &v->ranks[i]));
    }
}

static void append_phases(text_buf *out, const job_status *v)
{
    static const char name[] = "lockstep_rank_phase_seconds_total";
    bool has_head = false;

    for (int i = 0; i < v->n_ranks; i++) {
        if (!v->ranks[i].has_progress)
            continue;
        if (!has_head)
            append_head(out, name, "counter", "Time in the phases of training steps.");
        has_head = true;
        for (int k = 0; k < STATUS_PHASES; k++) {
            append_rank(out, name, &v->ranks[i]);
            text_append(out, ",phase=\"%s\"}", status_phases[k]);
            append_value(out, v->ranks[i].seconds[k]);
        }
    }
}

static void append_job(text_buf *out, const job_status *v)
{
    append_head(out, "lockstep_job_info", "gauge", "The job, in labels.");
    text_append(out, "lockstep_job_info{job=\"");
    append_label(out, v->name[0] != '\0' ? v->name : v->agent);
    text_append(out, "\",command=\"");
    append_label(out, v->command);
    text_append(out, "\",version=\"");
    append_label(out, v->version);
    text_append(out, "\"} 1\n");
    append_head(out, "lockstep_job_ranks", "gauge", "Ranks of the job.");
    text_append(out, "lockstep_job_ranks %d\n", v->world_size);
    append_head(out, "lockstep_job_nodes", "gauge", "Nodes of the job.");
    text_append(out, "lockstep_job_nodes %d\n", v->n_nodes);
    append_head(out, "lockstep_job_restarts_total", "counter", "Restarts after failures.");
    text_append(out, "lockstep_job_restarts_total %d\n", v->n_restarts);
    append_head(out, "lockstep_job_age_seconds", "gauge", "Time since the job was started.");
    text_append(out, "lockstep_job_age_seconds");
    append_value(out, v->age_s);
}

void metrics_text(const job_status *v, text_buf *out)
{
    append_job(out, v);
    for (size_t i = 0; i < LS_COUNT_OF(metrics); i++)
        append_ranks(out, v, &metrics[i]);
    append_phases(out, v);
}
