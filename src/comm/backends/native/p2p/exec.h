/* SPDX-License-Identifier: Apache-2.0 */
/* exec.h - carries out collectives by their plans (schedule.h). */
#ifndef LS_COMM_BACKENDS_NATIVE_P2P_EXEC_H
#define LS_COMM_BACKENDS_NATIVE_P2P_EXEC_H

#include "comm/backends/native/native.h"

void exec_start(native_group *g, backend_work *work);
/* Advances all lanes that can go on; true when there were any. */
bool exec_run(native_state *s);
/* Starts the operations that fit into the group's window. */
void exec_fill_window(native_group *g);
void exec_release(native_work *w);

#endif
