/* SPDX-License-Identifier: Apache-2.0 */
/*
 * recorder.c - writes and reads flight recorders (recorder.h); the engine writes, the launcher and
 * the trace reader read. A reader never uses a partly written entry.
 */
#include "comm/record/recorder.h"

#include "base/alloc.h"
#include "base/core.h"
#include "base/file.h"
#include "base/log.h"
#include "base/rng.h"
#include "base/text.h"
#include "host/memory_file.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAGIC          UINT64_C(0x3852454443524c53) /* "SLRCDER8" */
#define SITE_WORDS     (STAMP_SITE_BYTES / 8)
#define HEAD_WORDS     ((size_t)144)
#define ENTRY_WORDS    ((size_t)16)
#define PHASE_WORDS    ((size_t)8)
#define WARNING_WORDS  (RECORDER_WARNING_BYTES / 8)
#define PROGRESS_WORDS (sizeof(recorder_progress) / sizeof(uint64_t))
#define CAUSE_TEXT_MAX sizeof(((job_cause *)0)->text)
#define CAUSE_WORDS    (4 + CAUSE_TEXT_MAX / sizeof(uint64_t))
#define PHASES_AT      (HEAD_WORDS + RECORDER_ENTRIES * ENTRY_WORDS)
#define RECEIVED_AT    (PHASES_AT + (size_t)PHASE_RINGS * RECORDER_ENTRIES * PHASE_WORDS)
#define RING_WORDS     (RECEIVED_AT + RECORDER_RANKS)
#define RING_BYTES     (RING_WORDS * sizeof(uint64_t))

/* The rings of phases, in the order of their memory. */
typedef enum phase_ring { PROGRAM_PHASES, DEVICE_PHASES, PHASE_RINGS } phase_ring;

/* Words of the header. */
enum {
    HEAD_MAGIC = 0,
    HEAD_ENTRIES,
    HEAD_RANK,
    HEAD_LAST,
    HEAD_LAST_PHASE, /* one for each ring */
    HEAD_DROPPED = HEAD_LAST_PHASE + PHASE_RINGS,
    HEAD_ACTIVITY,
    HEAD_PROGRESS = HEAD_ACTIVITY + RECORDER_ACTIVITY_BYTES / 8, /* its number, then its words */
    HEAD_WARNING = HEAD_PROGRESS + 1 + (int)PROGRESS_WORDS,
    HEAD_OP_BYTES = HEAD_WARNING + 1 + WARNING_WORDS,
    HEAD_OP_NS,
    HEAD_SOURCES,
    HEAD_LEAVES,
    HEAD_CAUSE,
    HEAD_FAILURE_LINE = HEAD_CAUSE + 1 + CAUSE_WORDS,
    HEAD_USED
};

_Static_assert((size_t)HEAD_USED <= HEAD_WORDS, "the header can hold its words");

/* Words behind HEAD_CAUSE. */
enum {
    CAUSE_KIND = 0,
    CAUSE_RANK,
    CAUSE_SIZE,
    CAUSE_TIME,
    CAUSE_TEXT,
};

/* Words of an entry. */
enum {
    AT_NUMBER = 0,
    AT_SEQUENCE,
    AT_WHAT, /* group, kind, dtype, redop, form: from the low end, 32 + 4 x 8 bits */
    AT_ROOT, /* low half: root; high half: unused */
    AT_COUNT,
    AT_BYTES,
    AT_START,
    AT_END,
    AT_STATUS, /* low half: status; high half: peer */
    AT_SITE,
    AT_DEVICE_START = AT_SITE + SITE_WORDS,
    AT_DEVICE_END,
    ENTRY_USED
};

/* Words of a phase. */
enum { PHASE_NUMBER = 0, PHASE_START, PHASE_END, PHASE_NAME };

typedef _Atomic uint64_t word;

struct recorder {
    word *words;
    uint64_t last_number;
    uint64_t last_phase[PHASE_RINGS];
    uint64_t n_progress;
    word n_warnings;
    int fd;
};

/* The reader is another process, so the words alone define the order: stores become visible in
 * their order, and loads are made in their order. So a reader of a new word then reads a changed
 * number. */
static void put(word *at, uint64_t v)
{
    atomic_store_explicit(at, v, memory_order_release);
}

static uint64_t get(const word *at)
{
    return atomic_load_explicit(at, memory_order_acquire);
}

ls_status recorder_create_fd(int *fd)
{
    int made;

    LS_TRY(ls_context(memory_file_make("lockstep-recorder", RING_BYTES, &made),
                      "the flight recorder"));
    *fd = made;
    return LS_OK;
}

static bool is_recorder(int fd)
{
    struct stat info;

    return fstat(fd, &info) == 0 && S_ISREG(info.st_mode) && info.st_size == (off_t)RING_BYTES;
}

static ls_status get_fd(int fd, int *own)
{
    if (fd < 0 || !is_recorder(fd))
        return recorder_create_fd(own);
    (void)fcntl(fd, F_SETFD, FD_CLOEXEC); // children must not inherit it
    *own = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    return *own >= 0 ? LS_OK : ls_fail_errno("flight recorder: descriptor %d", fd);
}

static void record_warning(void *recorder_of_process, const char *text)
{
    recorder_set_warning(recorder_of_process, text);
}

ls_status recorder_open(int fd, int rank, recorder **out)
{
    recorder *r;
    void *base;
    ls_status st;

    LS_TRY(LS_NEW(&r, 1, "for a flight recorder"));
    r->fd = -1;
    st = get_fd(fd, &r->fd);
    if (st != LS_OK)
        goto fail;
    base = mmap(NULL, RING_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, r->fd, 0);
    if (base == MAP_FAILED) {
        st = ls_fail_errno("cannot map the flight recorder");
        goto fail;
    }
    r->words = base;
    // A rank that joins again continues its numbers.
    if (get(&r->words[HEAD_MAGIC]) == MAGIC) {
        r->last_number = get(&r->words[HEAD_LAST]);
        for (int i = 0; i < PHASE_RINGS; i++)
            r->last_phase[i] = get(&r->words[HEAD_LAST_PHASE + i]);
        r->n_progress = get(&r->words[HEAD_PROGRESS]);
        put(&r->n_warnings, get(&r->words[HEAD_WARNING]));
    }
    put(&r->words[HEAD_ENTRIES], RECORDER_ENTRIES);
    put(&r->words[HEAD_RANK], (uint64_t)(uint32_t)rank);
    put(&r->words[HEAD_CAUSE], 0);
    put(&r->words[HEAD_MAGIC], MAGIC);
    log_observe(record_warning, r);
    *out = r;
    return LS_OK;

fail:
    recorder_close(r);
    return st;
}

int recorder_fd(const recorder *r)
{
    return r->fd;
}

void recorder_close(recorder *r)
{
    if (r == NULL)
        return;
    log_observe(NULL, r);
    if (r->words != NULL)
        (void)munmap(r->words, RING_BYTES);
    file_close(&r->fd);
    ls_free(r);
}

static word *entry_at(word *words, uint64_t number)
{
    return &words[HEAD_WORDS + number % RECORDER_ENTRIES * ENTRY_WORDS];
}

static uint64_t pack_what(const op_stamp *s)
{
    return (uint64_t)s->group | (uint64_t)s->kind << 32 | (uint64_t)s->dtype << 40 |
           (uint64_t)s->redop << 48 | (uint64_t)s->form << 56;
}

static void put_text(word *at, const char text[STAMP_SITE_BYTES])
{
    for (size_t i = 0; i < SITE_WORDS; i++) {
        uint64_t part;

        memcpy(&part, text + i * sizeof(part), sizeof(part));
        put(&at[i], part);
    }
}

uint64_t recorder_begin(recorder *r, const op_stamp *stamp, uint64_t bytes, int64_t now_ns)
{
    const uint64_t number = ++r->last_number;
    word *e = entry_at(r->words, number);

    put(&e[AT_NUMBER], 0);
    put(&e[AT_SEQUENCE], stamp->sequence);
    put(&e[AT_WHAT], pack_what(stamp));
    put(&e[AT_ROOT], (uint64_t)(uint32_t)stamp->root);
    put(&e[AT_COUNT], stamp->count);
    put(&e[AT_BYTES], bytes);
    put(&e[AT_START], (uint64_t)now_ns);
    put(&e[AT_END], 0);
    put(&e[AT_STATUS], 0);
    put_text(&e[AT_SITE], stamp->site);
    put(&e[AT_DEVICE_START], 0);
    put(&e[AT_DEVICE_END], 0);
    put(&r->words[HEAD_LAST], number);
    put(&e[AT_NUMBER], number);
    // The ring exceeds the near caches, and a store that misses would delay the next ones.
    e = entry_at(r->words, number + 1);
    core_prefetch_write((const void *)(uintptr_t)e);
    core_prefetch_write((const void *)(uintptr_t)(e + ENTRY_WORDS / 2));
    return number;
}

void recorder_device_time(recorder *r, uint64_t number, int64_t start_ns, int64_t end_ns)
{
    word *e = entry_at(r->words, number);

    if (get(&e[AT_NUMBER]) != number)
        return;
    put(&e[AT_DEVICE_START], (uint64_t)start_ns);
    put(&e[AT_DEVICE_END], (uint64_t)end_ns);
}

void recorder_end(recorder *r, uint64_t number, ls_status status, int peer, int64_t now_ns)
{
    word *e = entry_at(r->words, number);

    if (get(&e[AT_NUMBER]) != number)
        return;
    put(&r->words[HEAD_OP_BYTES], get(&r->words[HEAD_OP_BYTES]) + get(&e[AT_BYTES]));
    put(&r->words[HEAD_OP_NS], get(&r->words[HEAD_OP_NS]) + ((uint64_t)now_ns - get(&e[AT_START])));
    put(&e[AT_STATUS], (uint64_t)(uint32_t)status | (uint64_t)(uint32_t)peer << 32);
    put(&e[AT_END],
        (uint64_t)now_ns); // after the status: a reader of the end also reads the status
}

static word *phase_at(word *words, phase_ring ring, uint64_t number)
{
    return &words[PHASES_AT +
                  (ring * (uint64_t)RECORDER_ENTRIES + number % RECORDER_ENTRIES) * PHASE_WORDS];
}

static void record_phase(recorder *r, phase_ring ring, const char *name, int64_t start_ns,
                         int64_t end_ns)
{
    const uint64_t number = ++r->last_phase[ring];
    word *p = phase_at(r->words, ring, number);
    char text[STAMP_SITE_BYTES] = {0};

    text_format(text, sizeof(text), "%s", name);
    put(&p[PHASE_NUMBER], 0);
    put(&p[PHASE_START], (uint64_t)start_ns);
    put(&p[PHASE_END], (uint64_t)end_ns);
    put_text(&p[PHASE_NAME], text);
    put(&r->words[HEAD_LAST_PHASE + ring], number);
    put(&p[PHASE_NUMBER], number);
}

void recorder_phase(recorder *r, const char *name, int64_t start_ns, int64_t end_ns)
{
    record_phase(r, PROGRAM_PHASES, name, start_ns, end_ns);
}

void recorder_device_phase(recorder *r, const char *name, int64_t start_ns, int64_t end_ns)
{
    record_phase(r, DEVICE_PHASES, name, start_ns, end_ns);
}

void recorder_drop_device_phase(recorder *r)
{
    put(&r->words[HEAD_DROPPED], get(&r->words[HEAD_DROPPED]) + 1);
}

static void write_word(int fd, int at, uint64_t v)
{
    if (is_recorder(fd))
        (void)!pwrite(fd, &v, sizeof(v), (off_t)at * (off_t)sizeof(v));
}

void recorder_set_leaving(int fd)
{
    write_word(fd, HEAD_LEAVES, 1);
}

uint64_t recorder_hash_line(const char *line, size_t bytes)
{
    const uint64_t h = ls_hash_bytes(line, bytes, 0);

    return h != 0 ? h : 1;
}

void recorder_note_failure_line(const char *line)
{
    const char *fd = getenv("LOCKSTEP_RING_FD"); // NOLINT(concurrency-mt-unsafe): as identity.c
    int64_t number;

    if (fd != NULL && text_parse_int(fd, "LOCKSTEP_RING_FD", 0, INT32_MAX, &number) == LS_OK)
        write_word((int)number, HEAD_FAILURE_LINE, recorder_hash_line(line, strlen(line)));
}

uint64_t recorder_read_failure_line(int fd)
{
    uint64_t hash;

    if (!is_recorder(fd) || file_pread_all(fd, "the flight recorder", &hash, sizeof(hash),
                                           HEAD_FAILURE_LINE * sizeof(hash)) != LS_OK)
        return 0;
    return hash;
}

bool recorder_is_leaving(const recorder *r)
{
    return get(&r->words[HEAD_LEAVES]) != 0;
}

void recorder_set_activity(recorder *r, const char *text)
{
    uint64_t words[RECORDER_ACTIVITY_BYTES / sizeof(uint64_t)] = {0};

    text_format((char *)words, sizeof(words), "%s", text);
    for (size_t i = 0; i < LS_COUNT_OF(words); i++)
        put(&r->words[HEAD_ACTIVITY + i], words[i]);
}

/* n words behind a number, which is 0 while they change and never repeats. */
static void put_numbered(word *at, uint64_t number, const uint64_t *words, size_t n)
{
    put(at, 0);
    for (size_t i = 0; i < n; i++)
        put(&at[1 + i], words[i]);
    put(at, number);
}

void recorder_set_progress(recorder *r, const recorder_progress *p)
{
    uint64_t words[PROGRESS_WORDS];

    memcpy(words, p, sizeof(words));
    put_numbered(&r->words[HEAD_PROGRESS], ++r->n_progress, words, PROGRESS_WORDS);
}

void recorder_set_warning(recorder *r, const char *text)
{
    uint64_t words[WARNING_WORDS] = {0};

    text_format((char *)words, sizeof(words), "%s", text);
    put_numbered(&r->words[HEAD_WARNING], atomic_fetch_add(&r->n_warnings, 1) + 1, words,
                 WARNING_WORDS);
}

void recorder_set_cause(recorder *r, const job_cause *cause, int n_ranks, int64_t now_ns)
{
    uint64_t words[CAUSE_WORDS] = {[CAUSE_KIND] = (uint64_t)cause->kind,
                                   [CAUSE_RANK] = (uint64_t)(int64_t)cause->rank,
                                   [CAUSE_SIZE] = (uint64_t)n_ranks,
                                   [CAUSE_TIME] = (uint64_t)now_ns};

    if (cause->kind == CAUSE_NONE || get(&r->words[HEAD_CAUSE]) != 0)
        return;
    memcpy(&words[CAUSE_TEXT], cause->text, sizeof(cause->text));
    put_numbered(&r->words[HEAD_CAUSE], 1, words, CAUSE_WORDS);
}

_Atomic uint64_t *recorder_received(recorder *r, int rank)
{
    if (rank < 0 || rank >= RECORDER_RANKS)
        return NULL;
    if (get(&r->words[HEAD_SOURCES]) <= (uint64_t)rank)
        put(&r->words[HEAD_SOURCES], (uint64_t)rank + 1);
    return &r->words[RECEIVED_AT + (size_t)rank];
}

void recorder_read_activity(int fd, text_buf *out)
{
    char text[RECORDER_ACTIVITY_BYTES];

    if (!is_recorder(fd) || file_pread_all(fd, "the flight recorder", text, sizeof(text),
                                           HEAD_ACTIVITY * sizeof(uint64_t)) != LS_OK)
        return;
    text[sizeof(text) - 1] = '\0';
    text_printable(text, sizeof(text), text);
    text_append(out, "%s", text);
}

/* Copies n words, of which the first is a number; returns the number, or 0 when it changed. */
static uint64_t copy_words(const word *from, uint64_t *to, size_t n)
{
    for (size_t i = 0; i < n; i++)
        to[i] = get(&from[i]);
    return get(&from[0]) == to[0] ? to[0] : 0;
}

/* False when the entry is incomplete, or changed during the copy. */
static bool read_entry(const word *e, recorder_entry *out)
{
    // The first load: see recorder_end().
    const int64_t end_ns = (int64_t)get(&e[AT_END]);
    uint64_t w[ENTRY_WORDS];
    const uint64_t number = copy_words(e, w, ENTRY_USED);

    if (number == 0)
        return false;
    *out = (recorder_entry){.number = number,
                            .bytes = w[AT_BYTES],
                            .start_ns = (int64_t)w[AT_START],
                            .end_ns = end_ns,
                            .device_start_ns = (int64_t)w[AT_DEVICE_START],
                            .device_end_ns = (int64_t)w[AT_DEVICE_END],
                            .status = end_ns == 0 ? LS_OK : (ls_status)(int32_t)w[AT_STATUS],
                            .peer = end_ns == 0 ? -1 : (int32_t)(w[AT_STATUS] >> 32)};
    out->stamp = (op_stamp){.group = (uint32_t)w[AT_WHAT],
                            .sequence = w[AT_SEQUENCE],
                            .kind = (uint8_t)(w[AT_WHAT] >> 32),
                            .dtype = (uint8_t)(w[AT_WHAT] >> 40),
                            .redop = (uint8_t)(w[AT_WHAT] >> 48),
                            .form = (uint8_t)(w[AT_WHAT] >> 56),
                            .root = (int32_t)(uint32_t)w[AT_ROOT],
                            .count = w[AT_COUNT]};
    memcpy(out->stamp.site, &w[AT_SITE], STAMP_SITE_BYTES);
    out->stamp.site[STAMP_SITE_BYTES - 1] = '\0';
    return true;
}

/* Maps the recorder behind fd for reading. */
static ls_status map_to_read(int fd, word **words)
{
    void *base;

    if (!is_recorder(fd))
        return ls_fail(LS_EFORMAT, "descriptor %d is not a flight recorder", fd);
    base = mmap(NULL, RING_BYTES, PROT_READ, MAP_SHARED, fd, 0);
    if (base == MAP_FAILED)
        return ls_fail_errno("cannot map the flight recorder");
    *words = base;
    if (get(&(*words)[HEAD_MAGIC]) == MAGIC && get(&(*words)[HEAD_ENTRIES]) == RECORDER_ENTRIES)
        return LS_OK;
    (void)munmap(base, RING_BYTES);
    return ls_fail(LS_EFORMAT, "descriptor %d is not a flight recorder", fd);
}

/* How many of the numbers 1 to `last` are in the ring, at most `max`. */
static uint64_t n_in_ring(uint64_t last, int max)
{
    const uint64_t n = max < RECORDER_ENTRIES ? (uint64_t)max : RECORDER_ENTRIES;

    return last < n ? last : n;
}

ls_status recorder_read(int fd, recorder_entry *out, int max, int *n)
{
    word *words;
    uint64_t last;

    *n = 0;
    LS_TRY(map_to_read(fd, &words));
    last = get(&words[HEAD_LAST]);
    for (uint64_t k = n_in_ring(last, max); k > 0; k--) {
        const uint64_t i = last - k + 1;

        *n += read_entry(entry_at(words, i), &out[*n]) && out[*n].number == i;
    }
    (void)munmap(words, RING_BYTES);
    return LS_OK;
}

/* Words behind their number; false when there are none, or they change. */
static bool read_numbered(const word *at, void *out, size_t n)
{
    uint64_t w[1 + CAUSE_WORDS];

    LS_ASSERT(1 + n <= LS_COUNT_OF(w));
    if (copy_words(at, w, 1 + n) == 0)
        return false;
    memcpy(out, w + 1, n * sizeof(*w));
    return true;
}

ls_status recorder_read_summary(int fd, recorder_summary *out)
{
    word *words;

    *out = (recorder_summary){.n_operations = 0};
    LS_TRY(map_to_read(fd, &words));
    out->n_operations = get(&words[HEAD_LAST]);
    out->op_bytes = get(&words[HEAD_OP_BYTES]);
    out->op_ns = (int64_t)get(&words[HEAD_OP_NS]);
    out->has_progress = read_numbered(&words[HEAD_PROGRESS], &out->progress, PROGRESS_WORDS);
    if (!read_numbered(&words[HEAD_WARNING], out->warning, WARNING_WORDS))
        out->warning[0] = '\0';
    out->warning[sizeof(out->warning) - 1] = '\0';
    text_printable(out->warning, sizeof(out->warning), out->warning);
    (void)munmap(words, RING_BYTES);
    return LS_OK;
}

bool recorder_read_cause(int fd, recorder_cause *out)
{
    uint64_t w[CAUSE_WORDS];
    char kept[LS_ERROR_BYTES];
    word *words;
    bool is_there;

    memset(out, 0, sizeof(*out));
    ls_error_save(kept);
    if (map_to_read(fd, &words) != LS_OK) {
        ls_error_restore(kept);
        return false;
    }
    is_there = read_numbered(&words[HEAD_CAUSE], w, CAUSE_WORDS);
    out->rank = (int)get(&words[HEAD_RANK]);
    (void)munmap(words, RING_BYTES);
    if (!is_there || w[CAUSE_KIND] > CAUSE_FAULT || w[CAUSE_SIZE] > RECORDER_RANKS)
        return false;
    out->cause.kind = (cause_kind)w[CAUSE_KIND];
    out->cause.group = GROUP_ALL;
    out->cause.rank = (int)(int64_t)w[CAUSE_RANK];
    out->n_ranks = (int)w[CAUSE_SIZE];
    out->at_ns = (int64_t)w[CAUSE_TIME];
    memcpy(out->cause.text, &w[CAUSE_TEXT], CAUSE_TEXT_MAX);
    out->cause.text[CAUSE_TEXT_MAX - 1] = '\0';
    text_printable(out->cause.text, CAUSE_TEXT_MAX, out->cause.text);
    return true;
}

static void read_ring(word *words, phase_ring ring, recorder_span *out, int max, int *n)
{
    const uint64_t last = get(&words[HEAD_LAST_PHASE + ring]);

    for (uint64_t k = n_in_ring(last, max); k > 0; k--) {
        const uint64_t i = last - k + 1;
        uint64_t w[PHASE_WORDS];

        if (copy_words(phase_at(words, ring, i), w, PHASE_WORDS) != i)
            continue;
        out[*n] = (recorder_span){
            .number = i, .start_ns = (int64_t)w[PHASE_START], .end_ns = (int64_t)w[PHASE_END]};
        memcpy(out[*n].name, &w[PHASE_NAME], STAMP_SITE_BYTES);
        out[*n].name[STAMP_SITE_BYTES - 1] = '\0';
        *n += 1;
    }
}

ls_status recorder_read_phases(int fd, recorder_span *out, int max, int *n)
{
    word *words;

    *n = 0;
    LS_TRY(map_to_read(fd, &words));
    read_ring(words, PROGRAM_PHASES, out, max, n);
    (void)munmap(words, RING_BYTES);
    return LS_OK;
}

ls_status recorder_read_device_phases(int fd, recorder_span *out, int max, int *n,
                                      uint64_t *n_dropped)
{
    word *words;

    *n = 0;
    LS_TRY(map_to_read(fd, &words));
    read_ring(words, DEVICE_PHASES, out, max, n);
    *n_dropped = get(&words[HEAD_DROPPED]);
    (void)munmap(words, RING_BYTES);
    return LS_OK;
}

/* Keeps the `max` largest in order. */
static void insert_source(recorder_source *list, int max, int *n, recorder_source new)
{
    int at = *n;

    while (at > 0 && list[at - 1].bytes < new.bytes)
        at--;
    if (at >= max)
        return;
    *n += *n < max;
    memmove(&list[at + 1], &list[at], (size_t)(*n - 1 - at) * sizeof(*list));
    list[at] = new;
}

ls_status recorder_read_received(int fd, recorder_source *out, int max, int *n, uint64_t *total)
{
    word *words;
    uint64_t n_sources;

    *n = 0;
    *total = 0;
    LS_TRY(map_to_read(fd, &words));
    n_sources = get(&words[HEAD_SOURCES]);
    // Reading a page that was never written would allocate it.
    for (size_t i = 0; i < n_sources && i < RECORDER_RANKS; i++) {
        const uint64_t bytes = get(&words[RECEIVED_AT + i]);

        *total += bytes;
        if (bytes > 0)
            insert_source(out, max, n, (recorder_source){.rank = (int)i, .bytes = bytes});
    }
    (void)munmap(words, RING_BYTES);
    return LS_OK;
}
