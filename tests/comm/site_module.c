/* SPDX-License-Identifier: Apache-2.0 */
/*
 * site_module.c - a shared library that contains comm/record/site.c, as liblockstep.so does, for
 * test_site.c.
 */
#include "comm/site_module.h"

#include "comm/record/site.h"

static site_cache cache;

static void hidden_function(void)
{
}

const char *site_of(const void *address)
{
    return site_text(&cache, address);
}

const char *site_of_public_function(void)
{
    return site_of((const char *)(uintptr_t)&site_of_public_function + 1);
}

const char *site_of_hidden_function(void)
{
    return site_of((const char *)(uintptr_t)&hidden_function);
}
