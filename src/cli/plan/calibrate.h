/* SPDX-License-Identifier: Apache-2.0 */
/*
 * calibrate.h - measures what a forecast needs: steps of a program, from traces of short runs, and
 * the cost of an exchange between two ranks of this host, with lockstep bench.
 *
 * Traces, reports and flags are not trusted: numbers that no clock gives are refused, and sizes
 * have limits.
 */
#ifndef LS_CLI_PLAN_CALIBRATE_H
#define LS_CLI_PLAN_CALIBRATE_H

#include "cli/plan/forecast.h"

enum {
    CALIBRATE_WARMUP = 3, /* steps that do not count */
    CALIBRATE_STEPS = 4,  /* that are needed behind them */
    CALIBRATE_BUCKETS = 65536
};

/* --- texts --- */

/* *step: the medians of the steps of rank 0 in a trace of `lockstep run --trace`; the caller frees
 * step->buckets with ls_free(), also after a failure. LS_EFORMAT: it is none, or has too few steps
 * that ls_ddp_backward() has reduced; names `what`. */
LS_MUST_USE ls_status calibrate_read_trace(const char *text, size_t bytes, const char *what,
                                           forecast_step *step);

/* "1Gbit,0.2ms": the rate of an Ethernet link in bit (kbit, Mbit, Gbit), and its round trip (us,
 * ms, s). bytes_per_s becomes what TCP carries of it. LS_EINVAL. */
LS_MUST_USE ls_status calibrate_read_link(const char *text, forecast_link *link);

/* The slowest path of a report of `lockstep check -H ... --json`. LS_EFORMAT; names `what`. */
LS_MUST_USE ls_status calibrate_read_check(const char *text, size_t bytes, const char *what,
                                           forecast_link *link);

/* --- runs --- */

typedef struct calibration {
    forecast_step step;
    double beside;      /* the time of a step beside another rank that computes, as its multiple */
    forecast_link host; /* two ranks of this host; bytes_per_s is 0 */
} calibration;

/* Runs the program alone, then twice at the same time, then the exchange of two ranks (over TCP if
 * is_tcp). Blocks until all have ended. Their output is shown on stderr when one fails: LS_EPEER.
 * The caller frees out->step.buckets with ls_free(), also after a failure. */
LS_MUST_USE ls_status calibrate_run(char *const *program, bool is_tcp, calibration *out);

#endif
