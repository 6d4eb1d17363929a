/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent_main.c - lockstep-agent, the agent binary that is copied to machines without Lockstep. It
 * is linked statically, so it runs on any Linux of the same architecture. A static program cannot
 * look up host names with glibc; this one needs numeric addresses only.
 */
#include "cli/cli.h"

#include "base/text.h"
#include "diagnose/checks/check.h"

#include <arpa/inet.h>
#include <net/if.h>
#include <netdb.h>
#include <pwd.h>
#include <stdlib.h>
#include <string.h>

// NOLINTBEGIN(readability-*): the parameters are the C library's

/* Replaces glibc's, which would load shared libraries. Parses numeric addresses only. */
int getaddrinfo(const char *restrict name, const char *restrict service,
                const struct addrinfo *restrict hints, struct addrinfo **restrict out)
{
    static struct sockaddr_in6 at;
    static struct addrinfo found;
    char host[64];
    const char *zone = strchr(name, '%');

    LS_UNUSED(service);
    LS_UNUSED(hints);
    text_format(host, sizeof(host), "%.*s",
                (int)(zone != NULL ? zone - name : (ptrdiff_t)strlen(name)), name);
    at = (struct sockaddr_in6){.sin6_family = AF_INET6};
    if (inet_pton(AF_INET6, host, &at.sin6_addr) != 1)
        return EAI_NONAME;
    at.sin6_scope_id = zone != NULL ? if_nametoindex(zone + 1) : 0;
    found = (struct addrinfo){
        .ai_family = AF_INET6, .ai_addr = (struct sockaddr *)&at, .ai_addrlen = sizeof(at)};
    *out = &found;
    return 0;
}

void freeaddrinfo(struct addrinfo *list)
{
    LS_UNUSED(list);
}

const char *gai_strerror(int error)
{
    LS_UNUSED(error);
    return "this program does not look up host names";
}

/* Replaces glibc's. It would find the home folder, for a key file; the key comes with the launch
 * request. */
int getpwuid_r(uid_t user, struct passwd *restrict entry, char *restrict space, size_t n,
               struct passwd **restrict out)
{
    LS_UNUSED(user);
    LS_UNUSED(entry);
    LS_UNUSED(space);
    LS_UNUSED(n);
    *out = NULL;
    return 0;
}

// NOLINTEND(readability-*)

int main(int argc, char **argv)
{
    if (argc > 1 && text_equal(argv[1], "agent"))
        return run_agent(argc - 1, argv + 1, &check_static_machine);
    print_error(
        "lockstep-agent: for internal use; lockstep run -H and lockstep check -H start it on "
        "other machines\n");
    return 2;
}
