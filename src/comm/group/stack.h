/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stack.h - answers the hub's question for the stack of the program, which is asked when this rank
 * is late. The program is outside of the library then, so a thread waits for the question.
 */
#ifndef LS_COMM_GROUP_STACK_H
#define LS_COMM_GROUP_STACK_H

#include "comm/engine.h"

/* Under the lock: the hub has asked. */
void stack_asked(engine *e);
/* Ends the thread; not under the lock. */
void stack_stop(engine *e);

#endif
