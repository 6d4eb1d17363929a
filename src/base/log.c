/* SPDX-License-Identifier: Apache-2.0 */
/*
 * log.c - composes each line on the stack and writes it with one write(), so that lines of threads
 * and of ranks that share a pipe do not mix. All modules log through ls_log().
 */
#include "base/log.h"

#include "base/clock.h"
#include "base/config.h"
#include "base/text.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define MAX_RULES       32
#define COMPONENT_BYTES 24
#define LINE_BYTES      2048 /* below PIPE_BUF: a pipe writes it atomically */

typedef struct rule {
    char component[COMPONENT_BYTES];
    ls_log_level level;
} rule;

typedef struct rule_set {
    ls_log_level standard;
    int n_rules;
    rule rules[MAX_RULES];
} rule_set;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; // guards the next four
static rule_set active = {.standard = LS_LOG_WARN};
static bool is_configured;
static char rank_text[32];
static int rank_set;

// The highest level of any component; -1 until LOCKSTEP_LOG has been read. Relaxed: it only avoids
// the lock for lines that no component prints.
static atomic_int most_level = -1;

static const char *const level_names[] = {"error", "warn", "info", "debug", "trace"};
static const char level_letters[] = "EWIDT";

static bool find_level(const char *name, ls_log_level *out)
{
    for (size_t i = 0; i < LS_COUNT_OF(level_names); i++) {
        if (text_equal(name, level_names[i])) {
            *out = (ls_log_level)i;
            return true;
        }
    }
    return false;
}

/* Whether `name` begins with the component name that ends at `end`. */
static bool is_component(const char *name, const char *end)
{
    const size_t n = strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_.-");

    return n > 0 && name + n == end && n < COMPONENT_BYTES;
}

/* Adds one item, "info" or "comm=debug", to the set. */
static ls_status parse_item(char *item, rule_set *set)
{
    char shown[64];
    char *equals = strchr(item, '=');
    rule *r = &set->rules[set->n_rules];

    text_printable(shown, sizeof(shown), item);
    if (equals == NULL) {
        if (find_level(item, &set->standard))
            return LS_OK;
    } else if (is_component(item, equals)) {
        if (set->n_rules == MAX_RULES)
            return ls_fail(LS_EINVAL, "LOCKSTEP_LOG: more than %d components, at \"%s\"", MAX_RULES,
                           shown);
        *equals = '\0';
        if (find_level(equals + 1, &r->level)) {
            (void)text_format(r->component, sizeof(r->component), "%s", item);
            set->n_rules++;
            return LS_OK;
        }
    }
    return ls_fail(
        LS_EINVAL,
        "LOCKSTEP_LOG: \"%s\" is neither LEVEL nor COMPONENT=LEVEL, where a level is one "
        "of error, warn, info, debug, trace",
        shown);
}

static ls_status parse_spec(const char *spec, rule_set *set)
{
    char copy[1024];
    char *rest = copy;
    char *item;

    *set = (rule_set){.standard = LS_LOG_WARN};
    if (strlen(spec) >= sizeof(copy))
        return ls_fail(LS_EINVAL, "LOCKSTEP_LOG: %zu bytes are too long", strlen(spec));
    (void)text_format(copy, sizeof(copy), "%s", spec);
    while ((item = strsep(&rest, ",")) != NULL)
        LS_TRY(parse_item(item, set));
    return LS_OK;
}

/* Called under the lock. */
static void activate(const rule_set *set)
{
    int most = (int)set->standard;

    for (int i = 0; i < set->n_rules; i++) {
        if ((int)set->rules[i].level > most)
            most = (int)set->rules[i].level;
    }
    active = *set;
    is_configured = true;
    atomic_store_explicit(&most_level, most, memory_order_relaxed);
}

ls_status log_configure(const char *spec)
{
    rule_set set;

    LS_TRY(parse_spec(spec, &set));
    (void)pthread_mutex_lock(&lock);
    activate(&set);
    (void)pthread_mutex_unlock(&lock);
    return LS_OK;
}

/* Reads LOCKSTEP_LOG at the first line. With an invalid value the default applies, so that lines
 * which explain it are printed; config_check() refuses the value. */
static void configure_once(void)
{
    // NOLINTNEXTLINE(concurrency-mt-unsafe): no thread sets it
    const char *spec = getenv(config_table()[CONFIG_LOG].name);
    rule_set set = {.standard = LS_LOG_WARN};
    char saved[LS_ERROR_BYTES];

    ls_error_save(saved);
    (void)pthread_mutex_lock(&lock);
    if (!is_configured) {
        if (spec != NULL && *spec != '\0' && parse_spec(spec, &set) != LS_OK)
            set = (rule_set){.standard = LS_LOG_WARN};
        activate(&set);
    }
    (void)pthread_mutex_unlock(&lock);
    ls_error_restore(saved);
}

int ls_log_enabled(ls_log_level level, const char *component)
{
    ls_log_level limit;

    if ((unsigned)level > LS_LOG_TRACE || component == NULL)
        return 0;
    if (atomic_load_explicit(&most_level, memory_order_relaxed) < 0)
        configure_once();
    if ((int)level > atomic_load_explicit(&most_level, memory_order_relaxed))
        return 0;
    (void)pthread_mutex_lock(&lock);
    limit = active.standard;
    for (int i = 0; i < active.n_rules; i++) {
        if (text_equal(active.rules[i].component, component))
            limit = active.rules[i].level; // the last one counts
    }
    (void)pthread_mutex_unlock(&lock);
    return level <= limit;
}

void log_set_rank(int rank, int size)
{
    (void)pthread_mutex_lock(&lock);
    if (size > 0)
        (void)text_format(rank_text, sizeof(rank_text), "rank%d/%d ", rank, size);
    else
        rank_text[0] = '\0';
    rank_set = size > 0 ? rank : 0;
    (void)pthread_mutex_unlock(&lock);
}

int log_rank(void)
{
    int rank;

    (void)pthread_mutex_lock(&lock);
    rank = rank_set;
    (void)pthread_mutex_unlock(&lock);
    return rank;
}

// NOLINTNEXTLINE(readability-non-const-parameter): written by the builtin
bool log_every(int64_t *last_ms, int64_t interval_ms)
{
    // 0 means "never", and the clock may be at 0.
    const int64_t now = ls_now_ms() + 1;
    int64_t last = __atomic_load_n(last_ms, __ATOMIC_RELAXED);

    // Relaxed: of the threads that share a call site only one may log.
    if (last != 0 && now - last < interval_ms)
        return false;
    return __atomic_compare_exchange_n(last_ms, &last, now, false, __ATOMIC_RELAXED,
                                       __ATOMIC_RELAXED);
}

/* "HH:MM:SS.mmm W rank3/8 comm: " */
static size_t put_head(char *line, size_t n, ls_log_level level, const char *component)
{
    char rank[sizeof(rank_text)];
    struct timespec now;
    struct tm local;

    (void)clock_gettime(CLOCK_REALTIME, &now);
    (void)localtime_r(&now.tv_sec, &local);
    (void)pthread_mutex_lock(&lock);
    memcpy(rank, rank_text, sizeof(rank));
    (void)pthread_mutex_unlock(&lock);
    return strlen(text_format(line, n, "%02d:%02d:%02d.%03d %c %s%s: ", local.tm_hour, local.tm_min,
                              local.tm_sec, (int)(now.tv_nsec / 1000000), level_letters[level],
                              rank, component));
}

/* Replaces control characters from files and peers, which would break the line or control the
 * terminal. */
static void strip_controls(char *text)
{
    unsigned char *p = (unsigned char *)text;

    for (; *p != '\0'; p++) {
        if (*p == '\n' || *p == '\t' || *p == '\r')
            *p = ' ';
        else if (*p < 0x20 || *p == 0x7F)
            *p = '?';
        else if (*p == 0xC2 && p[1] >= 0x80 && p[1] < 0xA0) // C1 controls in UTF-8
            p[0] = p[1] = '?';
    }
}

static pthread_mutex_t observer_lock = PTHREAD_MUTEX_INITIALIZER;
static void (*observer)(void *arg, const char *text);
static void *observer_arg;

void log_observe(void (*fn)(void *arg, const char *text), void *arg)
{
    (void)pthread_mutex_lock(&observer_lock);
    if (fn != NULL || arg == observer_arg) {
        observer = fn;
        observer_arg = arg;
    }
    (void)pthread_mutex_unlock(&observer_lock);
}

/* Never waits: a forked child may have inherited the lock from a thread that it does not have.
 * Then, and while another thread is here, the line is only printed. */
static void notify_observer(const char *text)
{
    if (pthread_mutex_trylock(&observer_lock) != 0)
        return;
    if (observer != NULL)
        observer(observer_arg, text);
    (void)pthread_mutex_unlock(&observer_lock);
}

static atomic_bool has_bar;

bool log_set_bar(bool is_shown)
{
    return atomic_exchange_explicit(&has_bar, is_shown, memory_order_relaxed);
}

static void write_line(char *line, size_t bytes)
{
    static char erase[] = "\r\x1b[K";
    const struct iovec parts[] = {{erase, log_set_bar(false) ? sizeof(erase) - 1 : 0},
                                  {line, bytes}};
    ssize_t put;

    do {
        put = writev(STDERR_FILENO, parts, 2);
    } while (put < 0 && errno == EINTR);
}

void ls_log(ls_log_level level, const char *component, const char *format, ...)
{
    const int saved = errno;
    char line[LINE_BYTES];
    size_t used;
    size_t capacity;
    int length;
    va_list args;

    if (format == NULL || !ls_log_enabled(level, component))
        return;
    used = put_head(line, sizeof(line) - 1, level, component);
    capacity = sizeof(line) - 1 - used; // one byte is for the newline
    va_start(args, format);
    length = vsnprintf(line + used, capacity, format, args);
    va_end(args);
    if (length < 0)
        line[used] = '\0';
    else if ((size_t)length >= capacity)
        memcpy(line + sizeof(line) - 5, "...", 4);
    strip_controls(line);
    if (level <= LS_LOG_WARN)
        notify_observer(line + used);
    used = strlen(line);
    line[used] = '\n';
    write_line(line, used + 1);
    errno = saved;
}
