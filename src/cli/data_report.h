/* SPDX-License-Identifier: Apache-2.0 */
/*
 * data_report.h - what lockstep data says about one split of a data set.
 */
#ifndef LS_CLI_DATA_REPORT_H
#define LS_CLI_DATA_REPORT_H

#include "base/json.h"
#include "data/describe.h"

/* As lines on standard output; with_classes: one for each class, too. */
void data_report_print(const char *name, const ls_dataset *d, const dataset_facts *f,
                       bool with_classes);

/* As an object of an array. */
void data_report_json(json_writer *w, const char *name, const ls_dataset *d,
                      const dataset_facts *f);

#endif
