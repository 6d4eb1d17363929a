/* SPDX-License-Identifier: Apache-2.0 */
/* data_report.h - prints what lockstep data has found in one split of a data set. */
#ifndef LS_CLI_DATA_DATA_REPORT_H
#define LS_CLI_DATA_DATA_REPORT_H

#include "base/report/json.h"
#include "data/describe.h"

/* Prints lines to stdout; with_classes: also one line for each class. */
void data_report_print(const char *name, const ls_dataset *d, const dataset_facts *f,
                       bool with_classes);

/* Writes one object of an open JSON array. */
void data_report_json(json_writer *w, const char *name, const ls_dataset *d,
                      const dataset_facts *f);

#endif
