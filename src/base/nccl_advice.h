/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nccl_advice.h - what to do about the usual errors of NCCL, by parts of its messages. The NCCL
 * backend, a module, and `lockstep check` include it.
 */
#ifndef LS_BASE_NCCL_ADVICE_H
#define LS_BASE_NCCL_ADVICE_H

#include <stddef.h>
#include <string.h>

#define NCCL_ADVICE_SHM                                                                            \
    "/dev/shm is too small: mount -o remount,size=8G /dev/shm; docker run --shm-size=8g"
#define NCCL_ADVICE_P2P "NCCL_P2P_DISABLE=1 works around it, or disable ACS in the firmware"

/* Static text; `otherwise` for a message of another kind. */
static inline const char *nccl_advice(const char *message, const char *otherwise)
{
    static const struct {
        const char *part;
        const char *advice;
    } rows[] = {
        {"no socket interface",
         "unset NCCL_SOCKET_IFNAME, or set it to an interface of `ip -br addr`"},
        {"Duplicate GPU", "two ranks use one GPU: start one rank for each GPU"},
        {"/dev/shm", NCCL_ADVICE_SHM},
        {"No space left", NCCL_ADVICE_SHM},
        {"driver version",
         "the driver is too old for this NCCL: nvidia-smi shows its CUDA version"},
        {"peer access", NCCL_ADVICE_P2P},
        {"P2P", NCCL_ADVICE_P2P},
        {"out of memory", "nvidia-smi shows which process uses the memory"},
        {"Connection refused",
         "allow connections in the firewall, or set NCCL_SOCKET_IFNAME (lo for one host)"},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        if (strstr(message, rows[i].part) != NULL)
            return rows[i].advice;
    }
    return otherwise;
}

#endif
