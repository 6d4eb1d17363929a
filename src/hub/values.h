/* SPDX-License-Identifier: Apache-2.0 */
/*
 * values.h - a list of values over the wire, each as its difference from the one before it: records
 * of ranks are alike. A value is a u8, and then
 *
 *   255    its bytes, after their length
 *   n      n times: u8 how many bytes stay, u8 m, m bytes that replace as many; the rest stays. The
 *          value is as long as the one before.
 */
#ifndef LS_HUB_VALUES_H
#define LS_HUB_VALUES_H

#include "net/byte_queue.h"
#include "net/wire.h"
#include "store/table.h"

/* before: empty for the first value of a list. */
void values_write(wire_writer *w, kv_bytes before, kv_bytes value);

/* Replaces the value before, empty at first, by the next one. The data may be hostile: LS_EPROTO;
 * LS_ENOMEM. */
LS_MUST_USE ls_status values_read(wire_reader *r, byte_queue *value);

#endif
