/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hosts_check_facts.c - gathers the facts of this machine that are compared between hosts: build,
 * kernel, C library, processor features, Python, PyTorch. Called by the checking child
 * (hosts_check_node.c).
 */
#include "diagnose/hosts/hosts_check_node.h"

#include "base/file.h"
#include "base/text.h"
#include "diagnose/child.h"
#include "host/build_id.h"

#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

enum { PROGRAM_MS = 5000, CPUINFO_MOST = 16384 };

static const char *const features[] = {
    /* x86 */
    "sse4_2", "avx", "f16c", "fma", "avx2", "avx_vnni", "avx512f", "avx512bw", "avx512vl",
    "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_bf16", "amx_int8", "amx_tile",
    /* ARM */
    "asimd", "asimdhp", "asimddp", "bf16", "i8mm", "sve", "sve2"};

static bool has_word(const char *list, size_t n, const char *word)
{
    const size_t length = strlen(word);

    for (size_t i = 0; i + length <= n; i++)
        if ((i == 0 || list[i - 1] == ' ') && strncmp(list + i, word, length) == 0 &&
            (i + length == n || list[i + length] == ' '))
            return true;
    return false;
}

/* "flags : ..." on x86, "Features : ..." on ARM. */
static const char *find_features(const char *cpuinfo)
{
    for (const char *line = cpuinfo; line != NULL; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (text_starts(line, "flags\t") || text_starts(line, "Features\t"))
            return strchr(line, ':');
    }
    return NULL;
}

void hosts_check_simd_text(const char *cpuinfo, char *buf, size_t n)
{
    const char *list = find_features(cpuinfo);
    size_t length;

    buf[0] = 0;
    if (list == NULL)
        return;
    list++;
    length = strcspn(list, "\n");
    for (size_t i = 0; i < LS_COUNT_OF(features); i++)
        if (has_word(list, length, features[i]))
            text_format(buf + strlen(buf), n - strlen(buf), "%s%s", buf[0] != 0 ? " " : "",
                        features[i]);
}

static void read_simd(char *buf, size_t n)
{
    static char text[CPUINFO_MOST];

    if (file_read_start("/proc/cpuinfo", text, sizeof(text)) < 0)
        text[0] = 0;
    hosts_check_simd_text(text, buf, n);
}

static void run(const char *const *argv, char *buf, size_t n)
{
    char text[512];

    if (child_run(argv[0], (char *const *)(uintptr_t)argv, PROGRAM_MS, text, sizeof(text)) != LS_OK)
        text[0] = 0;
    text[strcspn(text, "\n")] = 0;
    text_printable(buf, n, text);
}

/* A static program contains another C library than that of the machine. */
static void read_libc(bool is_static, char *buf, size_t n)
{
    const char *const argv[] = {"getconf", "GNU_LIBC_VERSION", NULL};

    if (is_static)
        run(argv, buf, n);
    else if (confstr(_CS_GNU_LIBC_VERSION, buf, n) == 0)
        buf[0] = 0;
}

/* Reads the version of PyTorch from its metadata, as importing it takes seconds. */
static void read_python(hosts_check_facts *out)
{
    static const char script[] = "import sys\n"
                                 "from importlib import metadata\n"
                                 "try:\n"
                                 "    torch = metadata.version('torch')\n"
                                 "except Exception:\n"
                                 "    torch = ''\n"
                                 "print('%d.%d.%d' % sys.version_info[:3], torch)\n";
    const char *named = getenv("PYTHON_EXEC"); // NOLINT(concurrency-mt-unsafe): no thread sets it
    const char *const argv[] = {named != NULL && named[0] != 0 ? named : "python3", "-c", script,
                                NULL};
    char text[160];
    size_t n;

    run(argv, text, sizeof(text));
    n = strcspn(text, " ");
    text_format(out->python, sizeof(out->python), "%.*s", (int)n, text);
    text_format(out->torch, sizeof(out->torch), "%s", text[n] == ' ' ? text + n + 1 : "");
}

void hosts_check_facts_gather(bool is_quick, bool is_static, hosts_check_facts *out)
{
    struct utsname kernel;

    *out = (hosts_check_facts){.is_uninstalled = is_static};
    text_format(out->version, sizeof(out->version), "%s", ls_version());
    build_id_text(out->build, sizeof(out->build));
    if (uname(&kernel) == 0) {
        text_format(out->machine, sizeof(out->machine), "%.31s", kernel.machine);
        text_format(out->kernel, sizeof(out->kernel), "%.20s %.70s", kernel.sysname,
                    kernel.release);
    }
    read_simd(out->simd, sizeof(out->simd));
    read_libc(is_static, out->libc, sizeof(out->libc));
    if (!is_quick)
        read_python(out);
}

int64_t hosts_check_now_ns(void)
{
    struct timespec now;

    if (clock_gettime(CLOCK_REALTIME, &now) != 0)
        return 0;
    return (int64_t)now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}
