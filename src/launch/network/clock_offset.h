/* SPDX-License-Identifier: Apache-2.0 */
/*
 * clock_offset.h - the offset of another clock from this one, from requests with four time stamps,
 * as in NTP. Pure.
 *
 *     this machine    sent ---------------------------> returned
 *     the other one       \--> received .. replied --/
 *
 * The reply with the shortest round trip gives the best estimate: its error is at most half the
 * round trip.
 */
#ifndef LS_LAUNCH_NETWORK_CLOCK_OFFSET_H
#define LS_LAUNCH_NETWORK_CLOCK_OFFSET_H

#include <stdbool.h>
#include <stdint.h>

/* Zero-initialise. */
typedef struct clock_offset {
    int n;                 /* valid replies */
    int64_t offset_ns;     /* other clock minus this one; positive: it is ahead */
    int64_t round_trip_ns; /* of the best reply, without the time between received and replied */
} clock_offset;

/*
 * Adds one reply: sent and returned by this clock, received and replied by the other one, in
 * nanoseconds. False for a contradictory reply (a clock was set meanwhile), which changes nothing.
 */
bool clock_offset_add(clock_offset *c, int64_t sent_ns, int64_t received_ns, int64_t replied_ns,
                      int64_t returned_ns);

/* Whether the offset exceeds the limit even when its error is subtracted. */
bool clock_offset_exceeds(const clock_offset *c, int64_t limit_ns);

#endif
