/* SPDX-License-Identifier: Apache-2.0 */
/*
 * busy_nvml.c - a libnvidia-ml.so.1 with one card at 0000:04:00.0, which is busy for 87 % of the
 * time. test_cuda_nvml loads it.
 */
#include <string.h>

#define SHOWN __attribute__((visibility("default")))

SHOWN int nvmlInit_v2(void);
SHOWN int nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, void **card);
SHOWN int nvmlDeviceGetUtilizationRates(void *card, unsigned *rates);

static int is_started;
static int the_card;

int nvmlInit_v2(void)
{
    is_started = 1;
    return 0;
}

int nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, void **card)
{
    *card = &the_card;
    return is_started && strcmp(bus_id, "0000:04:00.0") == 0 ? 0 : 6; // NVML_ERROR_NOT_FOUND
}

int nvmlDeviceGetUtilizationRates(void *card, unsigned *rates)
{
    rates[0] = 87;
    rates[1] = 40;
    return card == &the_card ? 0 : 2; // NVML_ERROR_INVALID_ARGUMENT
}
