/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_ps.c - lockstep ps: lists the running jobs of this user on this machine. */
#include "cli/cli.h"
#include "cli/top/top.h"

#include "host/process_id.h"

enum { PS_N_FLAGS = 2 };

typedef struct ps {
    int json;
    int n_jobs;
    text_buf text;
    json_writer w;
} ps;

static void add_json(ps *p, const job_status *v)
{
    json_open(&p->w, NULL, '{');
    json_put_int(&p->w, "pid", v->pid);
    json_put_string(&p->w, "name", v->name);
    json_put_string(&p->w, "agent", v->agent);
    json_put_string(&p->w, "state", v->state);
    json_put_int(&p->w, "ranks", v->world_size);
    json_put_int(&p->w, "nodes", v->n_nodes);
    json_put_real(&p->w, "age_s", v->age_s);
    json_put_string(&p->w, "command", v->command);
    json_close(&p->w, '}');
}

static void add_job(void *arg, const job_status *v)
{
    ps *p = arg;
    char age[32];

    p->n_jobs++;
    if (p->json) {
        add_json(p, v);
        return;
    }
    if (p->n_jobs == 1)
        text_append(&p->text, "%8s %-16s %5s %5s %-17s %8s %s\n", "PID", "JOB", "NODES", "RANKS",
                    "STATE", "AGE", "COMMAND");
    text_append(&p->text, "%8d ", v->pid);
    top_column(v->name[0] != '\0' ? v->name : v->agent, 16, &p->text);
    text_append(&p->text, " %5d %5d %-17s %8s %s\n", v->n_nodes, v->world_size, v->state,
                process_age_text(age, sizeof(age), (int64_t)v->age_s), v->command);
}

static ls_status list_jobs(bool as_json)
{
    ps p = {.json = as_json};
    ls_status st;

    json_begin(&p.w, &p.text);
    if (as_json)
        json_open(&p.w, NULL, '[');
    st = top_each_job(add_job, &p);
    if (as_json)
        json_close(&p.w, ']');
    else if (p.n_jobs == 0)
        text_append(&p.text, "no jobs of this user on this machine\n");
    if (st == LS_OK)
        st = text_status(&p.text);
    if (st == LS_OK)
        print_out("%s%s", text_str(&p.text), as_json ? "\n" : "");
    text_free(&p.text);
    return st;
}

int cmd_ps(int argc, char **argv)
{
    int json = 0;
    int help = 0;
    const ls_flag table[PS_N_FLAGS] = {
        {"json", 0, LS_FLAG_BOOL, &json, 0, 0, "print a JSON array"},
        {"help", 'h', LS_FLAG_BOOL, &help, 0, 0, "print this text"},
    };
    const ls_flags flags = {.size = sizeof(flags),
                            .program = "lockstep ps",
                            .usage = "[flags]",
                            .summary = "Lists the running jobs of this user on this machine.",
                            .tables = {table},
                            .n = {PS_N_FLAGS}};
    ls_status st = ls_flags_parse(&flags, argc, argv, NULL);

    if (st == LS_OK && help)
        return print_help(&flags);
    if (st == LS_OK)
        st = list_jobs(json != 0);
    return st == LS_OK ? 0 : print_failure("ps", st);
}
